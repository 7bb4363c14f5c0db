/**
 * The handler of all services. Request headers control what it does. They are not part of the
 * fingerprint, so the handler can treat a repeated request differently.
 */

import { RequestLease } from "../../src/http/leased.js";
import { RequestTransaction } from "../../src/http/request-transaction.js";
import { execute } from "../pools.js";
import type { Config } from "./config.js";
import type { State } from "./state.js";

export type Context = RequestTransaction<unknown> | RequestLease | undefined;

export interface Input {
  readonly header: (name: string) => string | undefined;
  readonly body: string;
  readonly context: Context;
}

export interface Output {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly text: string;
  /** The text in pieces, for a response that is a stream. */
  readonly pieces: readonly string[] | undefined;
  /** Whether the stream ends with an error. */
  readonly isBroken: boolean;
}

/** Executes statements outside of the transactions of requests. */
export type Outside = (work: (client: unknown) => Promise<void>) => Promise<void>;

export class Handler {
  readonly #config: Config;
  readonly #state: State;
  readonly #outside: Outside;

  constructor(config: Config, state: State, outside: Outside) {
    this.#config = config;
    this.#state = state;
    this.#outside = outside;
  }

  async handle(input: Input): Promise<Output> {
    this.#state.running += 1;
    try {
      return await this.#work(input);
    } finally {
      this.#state.running -= 1;
    }
  }

  /** Executes a statement after the response. */
  async late({ context, body }: Input, how: string): Promise<void> {
    if (!(context instanceof RequestTransaction)) return;
    // The reply of the server to the next statement of the middleware takes longer.
    for (let n = 0; how === "later" && n < 100; n += 1) await Promise.resolve();
    const statement = how === "failing" ? "SELECT 1 / 0" : this.#insertion(body);
    await execute(context.client, statement);
  }

  async #work(input: Input): Promise<Output> {
    const { header, body, context } = input;
    this.#state.runs += 1;
    const run = this.#state.runs;
    if (context instanceof RequestTransaction) await this.#inside(input, context);
    else await this.#outsideOf(input, context);
    if (header("x-raise") !== undefined) throw new Error("the handler fails");
    const text = `run ${String(run)}, ${body}${"x".repeat(Number(header("x-size") ?? "0"))}`;
    return {
      status: Number(header("x-status") ?? "201"),
      headers: this.#headers(input, run),
      text,
      pieces: header("x-stream") === undefined ? undefined : (text.match(/.{1,100}/gs) ?? []),
      isBroken: header("x-stream") === "broken",
    };
  }

  #headers({ header }: Input, run: number): Record<string, string> {
    return {
      "x-run": String(run),
      "x-charges": String(this.#state.charges),
      "x-other": "kept",
      "set-cookie": "session=secret",
      "content-type": "text/plain",
      "date": "Thu, 01 Jan 1970 00:00:00 GMT",
      ...(header("x-with-hop") === undefined ? {} : { "x-hop": "1", "connection": "x-hop" }),
    };
  }

  async #inside({ header, body }: Input, transaction: RequestTransaction<unknown>) {
    const { client } = transaction;
    transaction.signal.addEventListener("abort", () => (this.#state.aborted += 1));
    if (header("x-unawaited") !== undefined) {
      // Sent, and executed before the record.
      execute(client, this.#insertion(body)).catch(() => undefined);
    } else {
      await execute(client, this.#insertion(body));
    }
    await execute(client, this.#insertion(body));
    await this.#lock(header, client);
    if (header("x-hold") !== undefined) await this.#state.hold();
    if (header("x-fail") !== undefined) {
      await execute(client, "SELECT 1 / 0").catch(() => undefined);
    }
    for (const statement of header("x-end")?.split("|") ?? []) {
      const ended = execute(client, statement);
      await (header("x-ignore-end") === undefined ? ended : ended.catch(() => undefined));
    }
    this.#state.clients.push(client);
    if (header("x-keep-writes") !== undefined) transaction.keepWrites();
  }

  async #outsideOf({ header, body }: Input, held: RequestLease | undefined) {
    if (header("x-charge") !== undefined) {
      await held?.once("charge", { body }, () => Promise.resolve((this.#state.charges += 1)), {
        onUnknown: "repeat",
      });
    }
    held?.signal.addEventListener("abort", () => (this.#state.aborted += 1));
    if (header("x-hold") !== undefined) await this.#state.hold();
    await this.#outside(async (client) => {
      await execute(client, this.#insertion(body));
      await execute(client, this.#insertion(body));
      await this.#lock(header, client);
    });
  }

  async #lock(header: Input["header"], client: unknown): Promise<void> {
    const lock = header("x-lock");
    if (lock !== undefined) await execute(client, `SELECT pg_advisory_xact_lock(${lock})`);
  }

  #insertion(body: string): string {
    return `INSERT INTO ${this.#config.table} VALUES ('${body.replaceAll("'", "''")}')`;
  }
}
