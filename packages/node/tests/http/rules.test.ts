/** Rules without a database. The other languages read the same cases. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createServer, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { test } from "node:test";

import { fingerprintOf } from "../../src/http/fingerprint.js";
import { Idempotency } from "../../src/http/idempotency.js";
import { Scope } from "../../src/http/index.js";
import { keyOf } from "../../src/http/key.js";
import { HeldResponse } from "../../src/http/node-response.js";
import { keepsWrites, Rules } from "../../src/http/options.js";
import { Problem, problemOf, type Kind } from "../../src/http/problem.js";
import { Recorded } from "../../src/http/recorded.js";
import { retried } from "../../src/http/retry.js";
import { CommitUnknownError, IdemError } from "../../src/index.js";
import { ask, exchange, type Answer } from "./client.js";

function failsWith(kind: Kind, work: () => unknown): void {
  assert.throws(work, (error) => error instanceof Problem && error.kind === kind);
}

const FOLDER = join(process.env["IDEM_CASES"] ?? "../../tests/spec/cases", "../http");

/** Reads the cases that the middlewares of all languages share. */
function read(file: string): unknown {
  return JSON.parse(readFileSync(join(FOLDER, file), "utf8"));
}

interface Keys {
  readonly valid: readonly { readonly value: string; readonly key: string }[];
  readonly invalid: readonly string[];
  readonly reasons: readonly { readonly value: string; readonly index: number }[];
}

test("keys are those of the specification", () => {
  const { valid, invalid, reasons } = read("keys.json") as Keys;
  for (const { value, key } of valid) assert.equal(keyOf([value]), key);
  for (const value of invalid) failsWith("bad-key", () => keyOf([value]));
  for (const { value, index } of reasons) {
    const reason = new RegExp(` at index ${String(index)}; a key in quotes must be one string`);
    assert.throws(() => keyOf([value]), reason);
  }
});

test("repeated header is rejected", () => {
  assert.equal(keyOf([]), null);
  assert.throws(() => keyOf(["a", "a"]), /more than once/);
});

interface Fingerprints {
  readonly requests: readonly {
    readonly method: string;
    readonly target: string;
    readonly body: string;
    readonly sha256: string;
  }[];
  readonly absolute_targets: readonly { readonly target: string; readonly path: string }[];
}

test("fingerprints are those of the specification", () => {
  const { requests, absolute_targets } = read("fingerprints.json") as Fingerprints;
  for (const { method, target, body, sha256 } of requests) {
    assert.equal(fingerprintOf(method, target, Buffer.from(body)).toString("hex"), sha256);
  }
  assert.equal(new Set(requests.map(({ sha256 }) => sha256)).size, requests.length);
  const of = (target: string) => fingerprintOf("POST", target, Buffer.alloc(0));
  for (const { target, path } of absolute_targets) assert.deepEqual(of(target), of(path));
});

interface IdCase {
  readonly caller?: string | null;
  readonly key: string;
  readonly id?: string;
  readonly problem?: Kind;
}

test("ids are those of the specification", () => {
  const { single_tenant, by_caller } =
    read("ids.json") as Record<"single_tenant" | "by_caller", readonly IdCase[]>;
  for (const { key, id } of single_tenant) {
    assert.equal(Scope.singleTenant().idOf(undefined, key), id);
  }
  const surrogate: IdCase = { caller: "\ud800", key: "k", problem: "unknown-caller" };
  for (const { caller, key, id, problem } of [...by_caller, surrogate]) {
    const idOf = () => Scope.by(() => caller).idOf(undefined, key);
    if (problem === undefined) assert.equal(idOf(), id);
    else failsWith(problem, idOf);
  }
});

interface Statuses {
  readonly recorded: readonly number[];
  readonly not_recorded: readonly number[];
  readonly writes_are_kept: readonly number[];
  readonly writes_are_rolled_back: readonly number[];
}

test("recorded statuses are those of the specification", () => {
  const statuses = read("statuses.json") as Statuses;
  const rules = new Rules({ destination: "d", scope: Scope.singleTenant() });
  for (const status of statuses.recorded) assert.ok(rules.keeps(status), String(status));
  for (const status of statuses.not_recorded) assert.ok(!rules.keeps(status), String(status));
  for (const status of statuses.writes_are_kept) assert.ok(keepsWrites(status, false));
  for (const status of statuses.writes_are_rolled_back) assert.ok(!keepsWrites(status, false));
});

test("caller that is no text is an error, and no shared caller", () => {
  for (const caller of [7, true, {}, Promise.resolve("a")]) {
    const scope = Scope.by(() => caller as unknown as string);
    assert.throws(() => scope.idOf(undefined, "k"), TypeError);
  }
});

test("middleware with invalid options is rejected", () => {
  const scope = Scope.singleTenant();
  const rejected = (options: object, message: RegExp) => {
    assert.throws(() => new Rules(options as never), message);
  };
  rejected({ destination: "d" }, /scope must be/);
  rejected({ destination: "d", scope: () => "a" }, /scope must be/);
  rejected({ destination: "d", scope, leaseMS: 1000 }, /TypeError: .* no option leaseMS/);
  rejected({ destination: "d", scope, method: [], body: 1 }, /no option method/);
  rejected({ destination: "", scope }, /destination must be/);
  rejected({ scope }, /destination must be/);
  rejected({ destination: "d", scope, mode: "other" }, /mode must be/);
  rejected({ destination: "d", scope, methods: "POST" }, /methods must be/);
  rejected({ destination: "d", scope, methods: ["POST", "patch"] }, /upper case/);
  for (const leaseMs of [99, 86_400_001, NaN]) {
    rejected({ destination: "d", scope, leaseMs }, /leaseMs must be/);
  }
  assert.throws(() => Scope.by(undefined as never), /needs a function/);
});

interface Stored {
  readonly status: number;
  readonly headers: readonly (readonly [string, string])[];
  readonly body_base64: string;
}

interface Records {
  readonly responses: readonly { readonly response: Stored; readonly record: Stored }[];
  readonly readable: object;
  readonly unreadable_members: readonly object[];
  readonly unreadable: readonly unknown[];
  readonly unsendable_texts: readonly string[];
}

test("records are those of the specification", () => {
  const fingerprint = fingerprintOf("GET", "/", Buffer.alloc(0));
  const rules = new Rules({ destination: "d", scope: Scope.singleTenant() });
  for (const { response, record } of (read("records.json") as Records).responses) {
    const body = Buffer.from(response.body_base64, "base64");
    const recorded = Recorded.of(fingerprint, { ...response, body }, rules.keepsHeader);
    const stored: unknown = JSON.parse(JSON.stringify(recorded.stored));
    assert.deepEqual(stored, { ...record, fingerprint: fingerprint.toString("hex") });
    const again = Recorded.from(stored);
    assert.ok(again.equals(recorded));
    const replayed = again.replay(fingerprint);
    assert.deepEqual([replayed.status, replayed.body], [record.status, body]);
    const mark = ["idempotency-replayed", "true"];
    assert.deepEqual(replayed.headers, [...record.headers, mark]);
    const other = fingerprintOf("GET", "/", Buffer.from("other"));
    failsWith("mismatch", () => again.replay(other));
  }
});

test("unreadable records are those of the specification", () => {
  const records = read("records.json") as Records;
  Recorded.from(records.readable);
  const texts = [...records.unsendable_texts, "\u{1f600}"];
  const headers = texts.flatMap((text) => [[text, "1"] as const, ["x-a", text] as const]);
  const changes = [...records.unreadable_members, ...headers.map((h) => ({ headers: [h] }))];
  const changed = changes.map((change) => ({ ...records.readable, ...change }));
  for (const stored of [undefined, ...records.unreadable, ...changed]) {
    failsWith("failed", () => Recorded.from(stored));
  }
  for (const header of headers) {
    const response = { status: 201, headers: [header], body: Buffer.alloc(0) };
    failsWith("failed", () => Recorded.of(Buffer.alloc(0), response, () => true));
  }
});

test("error of the database becomes a problem", () => {
  const kind = (error: unknown) => problemOf(error).kind;
  assert.equal(kind(new IdemError("lost", {})), "unavailable");
  assert.equal(kind(new IdemError("conflict", { sqlstate: "40001" })), "unavailable");
  // After a switchover, an old primary is read-only until the clients use the new one.
  assert.equal(kind(new IdemError("read-only", { sqlstate: "25006" })), "unavailable");
  assert.equal(kind(new IdemError("other", { sqlstate: "25001" })), "failed");
  assert.equal(kind(new CommitUnknownError("lost", { retryable: true })), "in-doubt");
  assert.equal(kind(new TypeError("a fault")), "failed");
  assert.equal(kind(new Problem("mismatch")), "mismatch");
});

test("problem after leased work is in doubt", () => {
  const kinds = ["unavailable", "failed", "mismatch"] as const;
  const after = kinds.map((kind) => new Problem(kind).afterWork().kind);
  assert.deepEqual(after, ["in-doubt", "in-doubt", "mismatch"]);
});

test("step is repeated only while that is safe", async () => {
  let attempts = 0;
  const fail = (error: Error) => () => {
    attempts += 1;
    return Promise.reject(error);
  };
  const lost = new IdemError("lost", {});
  await assert.rejects(retried(fail(lost), () => attempts < 2), lost);
  assert.equal(attempts, 2);
  attempts = 0;
  const fault = new IdemError("a fault", { sqlstate: "42601" });
  await assert.rejects(retried(fail(fault)), fault);
  assert.equal(attempts, 1);
});

test("fault in the options gets 500 and is reported", async () => {
  const errors: unknown[] = [];
  const scope = Scope.singleTenant();
  const rules = new Rules({ destination: "d", scope, onError: (error) => errors.push(error) });
  const fault = new TypeError("a fault");
  const idempotency = new Idempotency(rules, () => Promise.reject(fault));
  const head = { method: "POST", target: "/" };
  const { signal: disconnected } = new AbortController();
  const run = () => Promise.reject(new Error("the handler was executed"));
  const result = await idempotency.result("all:k", head, Buffer.alloc(0), { disconnected, run });
  assert.ok(result.kind === "other");
  assert.equal(result.response.status, 500);
  assert.deepEqual(errors, [fault]);
  assert.throws(() => idempotency.of({}), /not protected/);
});

async function withServer(
  handle: (response: ServerResponse) => void,
  check: (answer: Answer) => void,
): Promise<void> {
  const server = createServer((_, response) => {
    handle(response);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  try {
    check(await exchange((server.address() as AddressInfo).port, ask("k")));
  } finally {
    server.close();
  }
}

test("handler cannot change a response that replaces its own", () =>
  withServer(
    (response) => {
      response.setHeader("x-before", "1");
      const held = new HeldResponse(response, () => 10);
      held.complete.catch(() => undefined);
      response.setHeader("x-before", "2");
      response.setHeader("date", "now");
      response.writeHead(201, "message", { "x-handler": "1" });
      response.write("more than ten bytes");
      held.send({ status: 409, headers: [["x-other", "1"]], body: Buffer.from("other") });
      // After the end, Node.js emits an error for a write that is not ignored.
      response.write("late");
      response.end("late");
    },
    (answer) => {
      assert.deepEqual([answer.status, answer.body], [409, "other"]);
      const names = ["x-before", "x-handler", "x-other", "content-length"];
      assert.deepEqual(names.map((name) => answer.header(name)), ["1", undefined, "1", "5"]);
      assert.notEqual(answer.header("date") ?? "now", "now");
    },
  ));

test("handler cannot change its response after the end", () =>
  withServer(
    (response) => {
      const held = new HeldResponse(response, () => 100);
      response.writeHead(201, ["x-two", "1", "x-two", "2"]);
      response.write("fir");
      response.end("st", () => undefined);
      response.setHeader("x-late", "1");
      response.statusCode = 500;
      response.end("second");
      held.send();
    },
    (answer) => {
      assert.deepEqual([answer.status, answer.body], [201, "first"]);
      assert.deepEqual([answer.values("x-two"), answer.values("x-late")], [["1", "2"], []]);
    },
  ));

test("response of an error handler replaces one that has begun", () =>
  withServer(
    (response) => {
      const held = new HeldResponse(response, () => 100);
      response.writeHead(201, [["x-first", "1"]]);
      response.write("part");
      response.statusCode = 500;
      response.end("error");
      held.send();
    },
    (answer) => {
      assert.deepEqual([answer.status, answer.body], [500, "error"]);
    },
  ));
