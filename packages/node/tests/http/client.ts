/** An HTTP client. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { request, type IncomingMessage } from "node:http";
import { connect } from "node:net";

/** A request that can be sent several times. */
export class Ask {
  readonly method: string;
  readonly path: string;
  readonly headers: readonly (readonly [string, string])[];
  readonly body: string;

  constructor(fields: Pick<Ask, "method" | "path" | "headers" | "body">) {
    this.method = fields.method;
    this.path = fields.path;
    this.headers = fields.headers;
    this.body = fields.body;
  }

  with(name: string, value: string | number = "1"): Ask {
    return this.to({ headers: [...this.headers, [name, String(value)]] });
  }

  withoutKey(): Ask {
    return this.to({ headers: this.headers.filter(([name]) => name !== "idempotency-key") });
  }

  to(changes: Partial<Pick<Ask, "method" | "path" | "headers" | "body">>): Ask {
    const { method, path, headers, body } = this;
    return new Ask({ method, path, headers, body, ...changes });
  }
}

/** Returns a POST of /orders. Both the idempotency key and the body are `key`. */
export function ask(key: string): Ask {
  const headers = [["idempotency-key", `"${key}"`]] as const;
  return new Ask({ method: "POST", path: "/orders", headers, body: key });
}

/** A response with its complete body. */
export class Answer {
  readonly status: number;
  readonly headers: readonly (readonly [string, string])[];
  readonly bytes: Buffer;

  constructor({ statusCode = 0, rawHeaders }: IncomingMessage, bytes: Buffer) {
    this.status = statusCode;
    this.headers = rawHeaders.flatMap((name, n) =>
      n % 2 === 0 ? [[name.toLowerCase(), rawHeaders[n + 1] ?? ""] as const] : [],
    );
    this.bytes = bytes;
  }

  get body(): string {
    return this.bytes.toString();
  }

  values(name: string): string[] {
    return this.headers.filter(([other]) => other === name).map(([, value]) => value);
  }

  header(name: string): string | undefined {
    return this.values(name)[0];
  }

  get isReplayed(): boolean {
    return this.header("idempotency-replayed") === "true";
  }

  assertProblem(status: number, name: string): void {
    assert.equal(this.status, status, this.body);
    assert.equal(this.header("content-type"), "application/problem+json");
    const problem = JSON.parse(this.body) as Record<string, unknown>;
    assert.equal(problem["type"], `urn:idem:${name}`);
    assert.equal(problem["status"], status);
    assert.ok(problem["title"] !== "" && problem["detail"] !== "");
    const isTransient = ["in-progress", "unavailable", "in-doubt"].includes(name);
    assert.equal(this.header("retry-after") !== undefined, isTransient);
  }

  /** Asserts that this is the response of the run with this number, and no replay. */
  assertRun(status: number, run: number): void {
    assert.deepEqual([this.status, this.header("x-run")], [status, String(run)], this.body);
    assert.equal(this.isReplayed, false);
  }

  assertReplayOf(first: Answer): void {
    assert.ok(this.isReplayed, `${String(this.status)} ${this.body}`);
    assert.deepEqual([this.status, this.body], [first.status, first.body]);
    assert.equal(this.header("x-run"), first.header("x-run"));
  }
}

/** Sends a request on a connection of its own. The body can be sent in pieces, without a length. */
export async function exchange(
  port: number,
  sent: Ask,
  pieces?: readonly string[],
): Promise<Answer> {
  const length = pieces === undefined ? [["content-length", String(sent.body.length)]] : [];
  const chunked = pieces === undefined ? [] : [["transfer-encoding", "chunked"]];
  const headers = [["host", "tests"], ...length, ...chunked, ...sent.headers].flat();
  const { method, path } = sent;
  const out = request({ port, host: "127.0.0.1", method, path, headers, agent: false });
  for (const piece of pieces ?? [sent.body]) out.write(piece);
  out.end();
  const [response] = (await once(out, "response")) as [IncomingMessage];
  const chunks: Buffer[] = [];
  for await (const chunk of response) chunks.push(chunk as Buffer);
  return new Answer(response, Buffer.concat(chunks));
}

/** Sends a request, and closes its connection when `reaches` has ended. */
export async function disconnecting(
  port: number,
  sent: Ask,
  reaches: () => Promise<void>,
): Promise<void> {
  const socket = connect(port, "127.0.0.1");
  const lines = [`${sent.method} ${sent.path} HTTP/1.1`, "host: tests"];
  for (const [name, value] of sent.headers) lines.push(`${name}: ${value}`);
  const hasLength = sent.headers.some(([name]) => name === "content-length");
  if (!hasLength) lines.push(`content-length: ${String(sent.body.length)}`);
  lines.push("", sent.body);
  socket.write(lines.join("\r\n"));
  try {
    await reaches();
  } finally {
    socket.destroy();
  }
}

/** Repeats the request until the response is not "in progress". */
export async function untilSettled(port: number, sent: Ask): Promise<Answer> {
  const endsAt = performance.now() + 20_000;
  for (;;) {
    const response = await exchange(port, sent);
    if (response.status !== 409 || !response.body.includes("in-progress")) return response;
    assert.ok(performance.now() < endsAt, "the request stays in progress");
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
