/** Rules that need no server. */

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { env } from "node:process";
import { test } from "node:test";

import pg from "pg";

import {
  idem, IdemError, LeaseLostError, once, process, toolCallKey, transactions, type Effect,
  type Executor, type FailCallOptions, type Letter, type OutgoingMessage, type Pool,
} from "../src/index.js";
import { pauseMsAfter } from "../src/backoff.js";
import { storable } from "../src/errors.js";
import { Renewal } from "../src/renewal.js";

/** An executor that records statements, and returns one row or fails. */
function fake(result: unknown): { executor: Executor; sent: unknown[][] } {
  const sent: unknown[][] = [];
  const executor = {
    query(text: string, values: unknown[]) {
      sent.push([text, values]);
      if (result instanceof Error) return Promise.reject(result);
      return Promise.resolve({ rows: [{ c1: result }] });
    },
  };
  return { executor, sent };
}

test("ids are sent as text", async () => {
  const { executor, sent } = fake(true);
  for (const id of ["m", 12, 9007199254740993n]) await idem(executor).tryClaim(id, "d");
  assert.deepEqual(
    sent.map(([, values]) => (values as unknown[])[0]),
    ["m", "12", "9007199254740993"],
  );
});

test("id that is no safe integer is an error", async () => {
  const { executor, sent } = fake(true);
  for (const id of [1.5, NaN, 2 ** 53]) {
    await assert.rejects(idem(executor).tryClaim(id, "d"), RangeError);
  }
  for (const id of [null, undefined, {}]) {
    await assert.rejects(idem(executor).tryClaim(id as string, "d"), TypeError);
  }
  assert.equal(sent.length, 0);
});

test("payload without JSON is an error", async () => {
  const { executor, sent } = fake("id");
  await assert.rejects(idem(executor).send({ topic: "t", payload: undefined }), TypeError);
  const effect = { topic: "t", payload: () => 1 };
  await assert.rejects(idem(executor).record("m", "d", effect), TypeError);
  for (const payload of [new Map(), { at: new Date(NaN) }, [NaN], new Error("e")]) {
    await assert.rejects(idem(executor).send({ topic: "t", payload }), TypeError);
  }
  assert.equal(sent.length, 0);
});

test("value that is no effect is an error that names Effect", async () => {
  const { executor, sent } = fake("id");
  for (const wrong of [42, "t", null, [[]], [undefined]] as unknown as Effect[]) {
    const failed = idem(executor).record("m", "d", wrong);
    await assert.rejects(failed, { name: "TypeError", message: /^an effect is an object/ });
  }
  assert.equal(sent.length, 0);
});

test("unknown option is an error", async () => {
  const { executor, sent } = fake(true);
  const on = idem(executor);
  const wrong = { topic: "t", payload: 1, error: "e", leasems: 1 };
  const received = { id: "m", destination: "d", payload: 1, leasems: 1 };
  const message = { id: "m", destination: "d" };
  const token = { ...message, token: 1n };
  const step = { ...message, step: "s" };
  const pool = poolOf({});
  const none = () => Promise.resolve();
  const options = { id: () => "1", scope: () => null, onUnknown: "fail", leaseMS: 1 } as const;
  for (const call of [
    () => process(pool, message, none, wrong as object),
    () => transactions(pool)(none, wrong as object),
    () => on.claim("m", "d", wrong as object),
    () => on.acquire("m", "d", { lease: 1 } as object),
    () => on.extend(token, wrong as object),
    () => on.release(token, wrong),
    () => on.bury(token, { payload: 1, error: "e", source: "s" } as Letter),
    () => on.reject("m", "d", { payload: 1, error: "e", leasems: 1 } as Letter),
    () => on.send({ topic: "t", payload: 1, deliverAfter: new Date() } as OutgoingMessage),
    () => on.record("m", "d", wrong),
    () => on.complete(token, [wrong]),
    () => on.inbox.receive(received),
    () => on.inbox.next("d", { leasems: 1 } as object),
    () => on.journal.beginCall(step, { onUnknown: "fail" } as object),
    () => on.journal.failCall(step, "e", { retryable: true, final: true } as FailCallOptions),
    () => Promise.resolve().then(() => once(pool, "d", none, options)),
  ]) {
    await assert.rejects(call, { name: "TypeError", message: /has no option/ });
  }
  assert.equal(sent.length, 0);
});

test("number of retries is an integer of at least 0", async () => {
  const pool = poolOf({});
  const none = () => Promise.resolve();
  for (const wrong of [NaN, Infinity, -1, 0.5, "3"]) {
    const options = { retries: wrong as number };
    const expected = { name: "RangeError", message: /^retries is an integer of at least 0, not / };
    await assert.rejects(process(pool, { id: "m", destination: "d" }, none, options), expected);
    await assert.rejects(transactions(pool)(none, options), expected);
  }
});

test("pause before a repetition is at most a second", () => {
  for (const attempt of [1, 6, 40, 2000]) {
    const pauseMs = pauseMsAfter(attempt);
    assert.ok(pauseMs >= 25 && pauseMs <= 1000, String(pauseMs));
  }
});

test("text with half of a surrogate pair is an error", async () => {
  const { executor, sent } = fake(true);
  const half = "order-\ud83e";
  const functions = idem(executor);
  const effect = { topic: "t", payload: 1 };
  for (const call of [
    () => functions.tryClaim(half, "d"),
    () => functions.tryClaim("m", half),
    () => functions.send({ ...effect, key: half }),
    () => functions.send({ ...effect, topic: half }),
  ]) {
    await assert.rejects(call, /half of a surrogate pair/);
  }
  assert.equal(sent.length, 0);
  await functions.tryClaim("order-\u{1f980}", "d");
  assert.equal(sent.length, 1);
});

test("stored text of an error has no zero bytes and no half characters", () => {
  assert.equal(storable("a\0b \ud83e \u{1f980}"), "ab \ufffd \u{1f980}");
});

interface ToolKey {
  readonly tool: string;
  readonly arguments: object;
  readonly occurrence: number;
  readonly key: string;
}

test("keys of tool calls are those of the specification", () => {
  const folder = env["IDEM_CASES"] ?? "../../tests/spec/cases";
  const text = readFileSync(join(folder, "../tools/keys.json"), "utf8");
  const cases = JSON.parse(text) as ToolKey[];
  assert.ok(cases.length >= 8);
  for (const { tool, arguments: given, occurrence, key } of cases) {
    assert.equal(toolCallKey(tool, given, occurrence), key);
  }
  // Objects of JavaScript have their integers first. The keys are sorted as texts.
  const hash = createHash("sha256").update('["t",{"10":1,"9":2,"a":3},0]').digest("hex");
  assert.equal(toolCallKey("t", { a: 3, 9: 2, 10: 1 }, 0), hash);
  for (const occurrence of [-1, 0.5, NaN]) {
    assert.throws(() => toolCallKey("t", {}, occurrence), RangeError);
  }
});

test("error of the connection has no SQLSTATE and is retryable", async () => {
  const broken = Object.assign(new Error("write EPIPE"), { code: "EPIPE" });
  const cyclic = new Error("outer", { cause: broken });
  broken.cause = cyclic;
  await assert.rejects(idem(fake(cyclic).executor).tryClaim("m", "d"), (error) => {
    assert.ok(error instanceof IdemError);
    assert.deepEqual([error.sqlstate, error.hint, error.retryable], [undefined, undefined, true]);
    assert.equal(error.cause, cyclic);
    return true;
  });
});

test("fault of the program is not retryable", async () => {
  const failed = idem(fake(new TypeError("not a function")).executor).tryClaim("m", "d");
  await assert.rejects(failed, { name: "IdemError", retryable: false });
});

test("conflicts and lost servers are retryable", async () => {
  const states = { "40001": true, "40P01": true, "55P03": true, "57P01": true, "08006": true };
  for (const [code, retryable] of Object.entries({ ...states, "22023": false, "55000": false })) {
    const error = Object.assign(new Error("no"), { code, severity: "ERROR", hint: "A hint." });
    const failed = idem(fake(error).executor).tryClaim("m", "d");
    await assert.rejects(failed, { sqlstate: code, hint: "A hint.", retryable });
  }
});

test("message that is too old is rejected", async () => {
  const expired = await idem(fake("expired").executor).claim("m", "d");
  assert.deepEqual(expired, { outcome: "expired", settlement: "reject" });
});

test("result of another version is an error", async () => {
  const failed = idem(fake("delayed").executor).claim("m", "d");
  await assert.rejects(failed, { name: "UnexpectedResultError" });
});

test("object that executes nothing is a TypeError", () => {
  for (const executor of [{}, [], () => undefined, null, undefined, "postgresql://localhost"]) {
    assert.throws(() => idem(executor as Executor), TypeError);
  }
});

test("object that connects must be a connection", async () => {
  const { executor, sent } = fake(true);
  const connect = () => Promise.resolve();
  assert.throws(() => idem({ ...executor, connect } as unknown as Executor), {
    name: "TypeError",
    message: /not a pool/,
  });
  assert.equal(sent.length, 0);
  const pooled = { ...executor, connect, release: () => undefined };
  assert.equal(await idem(pooled).tryClaim("m", "d"), true);
  idem(new pg.Client());
});

/** A pool whose only connection is this client. */
function poolOf(client: object): Pool {
  const connect = (callback: (error: undefined, client: object) => void) => {
    callback(undefined, client);
  };
  return { totalCount: 1, query: () => undefined, connect } as Pool;
}

test("zero byte is an error, and left out of the text of a failure", async () => {
  const { executor, sent } = fake("t");
  const on = idem(executor);
  const letter = { payload: 1, error: "a\0b" };
  const zero = { topic: "t", payload: 1, key: "a\0" };
  const old = { sentAt: new Date(NaN) };
  for (const call of [() => on.send(zero), () => on.claim("m", "d", old)]) {
    await assert.rejects(call, RangeError);
  }
  assert.equal(sent.length, 0);
  await on.reject("m", "d", letter);
  await on.journal.failCall({ id: "m", destination: "d", step: "s" }, "a\0b", { retryable: true });
  for (const [, values] of sent) assert.ok((values as unknown[]).includes("ab"));
});

test("zero byte in a literal is an error", async () => {
  const texts: string[] = [];
  const client = {
    query(text: string) {
      texts.push(text);
      return Promise.resolve({ command: "ROLLBACK", rows: [] });
    },
    escapeLiteral: (text: string) => `'${text}'`,
    on: () => undefined,
    off: () => undefined,
    release: () => undefined,
  };
  const pool = poolOf(client);
  const failed = process(pool, { id: "m\0", destination: "d" }, () => Promise.resolve());
  await assert.rejects(failed, RangeError);
  assert.deepEqual(texts, []);
});

test("connection that cannot roll back is closed", async () => {
  const released: unknown[] = [];
  const client = {
    query: (text: string) =>
      text === "ROLLBACK"
        ? Promise.reject(new Error("the connection is lost"))
        : Promise.resolve({ command: "BEGIN", rows: [] }),
    escapeLiteral: (text: string) => text,
    on: () => undefined,
    off: () => undefined,
    release: (error: unknown) => released.push(error),
  };
  const pool = poolOf(client);
  const failure = new Error("the work failed");
  const failed = transactions(pool)(() => Promise.reject(failure));
  await assert.rejects(failed, failure);
  assert.deepEqual(released, [true]);
});

/** A renewal whose extensions the test ends. */
function renewal(leaseMs: number) {
  const extensions: PromiseWithResolversOf<undefined>[] = [];
  const waiting: (() => void)[] = [];
  const renewed = new Renewal({
    leaseMs,
    askedAtMs: performance.now(),
    extend: () => {
      const extension = withResolvers<undefined>();
      extensions.push(extension);
      waiting.shift()?.();
      return extension.promise;
    },
  });
  return {
    renewed,
    /** Returns the next extension. */
    next: async () => {
      if (extensions.length === 0) await new Promise<void>((resolve) => waiting.push(resolve));
      const extension = extensions.shift();
      assert.ok(extension !== undefined);
      return extension;
    },
  };
}

interface PromiseWithResolversOf<T> {
  readonly promise: Promise<T>;
  readonly resolve: (value: T) => void;
  readonly reject: (error: Error) => void;
}

function withResolvers<T>(): PromiseWithResolversOf<T> {
  let resolve: ((value: T) => void) | undefined;
  let reject: ((error: Error) => void) | undefined;
  const promise = new Promise<T>((resolved, rejected) => {
    resolve = resolved;
    reject = rejected;
  });
  assert.ok(resolve !== undefined && reject !== undefined);
  return { promise, resolve, reject };
}

/** The timer of a renewal does not keep the process alive. */
async function alive<T>(work: Promise<T>): Promise<T> {
  const timer = setInterval(() => undefined, 1000);
  return work.finally(() => {
    clearInterval(timer);
  });
}

test("lease that has ended aborts before its timer", () => {
  const extend = () => Promise.resolve();
  const held = new Renewal({ leaseMs: 1000, askedAtMs: performance.now(), extend });
  held.throwIfLost();
  assert.equal(held.signal.aborted, false);
  held.stop();
  const ended = new Renewal({ leaseMs: 1000, askedAtMs: performance.now() - 1000, extend });
  assert.throws(() => {
    ended.throwIfLost();
  }, LeaseLostError);
  assert.ok(ended.signal.reason instanceof LeaseLostError);
});

test("extension that fails after a stop does not abort", async () => {
  const { renewed, next } = renewal(150);
  const extension = await alive(next());
  renewed.stop();
  extension.reject(new LeaseLostError("the message was completed", {}));
  await new Promise((resolve) => setImmediate(resolve));
  assert.equal(renewed.signal.aborted, false);
});

test("renewal continues after a resumption", async () => {
  const { renewed, next } = renewal(150);
  (await alive(next())).resolve(undefined);
  renewed.stop();
  renewed.resume();
  const extension = await alive(next());
  const reason = new LeaseLostError("the lease is lost", {});
  const aborted = new Promise<void>((resolve) => {
    renewed.signal.addEventListener("abort", () => {
      resolve();
    });
  });
  extension.reject(reason);
  await aborted;
  assert.equal(renewed.signal.reason, reason);
});
