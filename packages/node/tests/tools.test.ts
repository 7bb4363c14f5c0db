/** Tools of AI agents, whose calls are made once. */

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { EventEmitter, once as event } from "node:events";
import { describe, test, type TestContext } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import {
  CallFailedError, CallNotDone, CallRefused, lease, once, process, ToolBusyError, ToolFailedError,
  type OnUnknown, type Tool, type ToolOptions,
} from "../src/index.js";
import { find, refund, startGateway, type Gateway, type Refund } from "./gateway.js";
import { POOLS } from "./pools.js";
import { start } from "./programs.js";
import { isClaimed, query } from "./server.js";

interface Args {
  readonly order: string;
}

interface Context {
  readonly callId: string;
}

const OPTIONS = {
  scope: () => null,
  id: (_: Args, { callId }: Context) => callId,
  onUnknown: "fail",
} satisfies ToolOptions<Args, Context, never>;

/** Repeats a call until it is not in progress. Fails after 20 seconds. */
async function untilFree<R>(call: () => Promise<R>): Promise<R> {
  const endsAt = performance.now() + 20_000;
  for (;;) {
    try {
      return await call();
    } catch (error) {
      if (!(error instanceof ToolBusyError) || performance.now() > endsAt) throw error;
    }
    await sleep(10);
  }
}

/** Returns a destination whose retries do not wait. */
async function newDestination(): Promise<string> {
  const destination = `tools-${randomUUID()}`;
  await query("SELECT idem_configure_retries($1, base => '0')", [destination]);
  return destination;
}

for (const [name, open] of Object.entries(POOLS)) {
  describe(`tools with ${name}`, { concurrency: false }, () => {
    const { pool, close } = open();

    /** Returns a tool that fails with these errors before it succeeds, and its calls. */
    async function failing(...errors: Error[]) {
      const destination = await newDestination();
      const calls: string[] = [];
      const tool = (_args: Args, { callId }: Context) => {
        calls.push(callId);
        const error = errors.shift();
        const result = { at: new Date(0), call: calls.length, none: undefined };
        return error === undefined ? Promise.resolve(result) : Promise.reject(error);
      };
      return { destination, calls, tool, call: once(pool, destination, tool, OPTIONS) };
    }

    test("repeated call returns the recorded result", async () => {
      const { call, calls, destination } = await failing();
      for (let n = 0; n < 3; n += 1) {
        const result: unknown = await call({ order: "o" }, { callId: "1" });
        assert.deepEqual(result, { at: "1970-01-01T00:00:00.000Z", call: 1 });
      }
      assert.deepEqual(calls, ["1"]);
      assert.ok(await isClaimed("all:1", destination));
      await call({ order: "o" }, { callId: "2" });
      assert.deepEqual(calls, ["1", "2"]);
    });

    test("other arguments for the same id fail", async () => {
      const { call, calls, destination, tool } = await failing(new Error("lost"));
      const other = { settlement: "reject", message: /"all:1" was made before with other/ };
      await assert.rejects(call({ order: "o" }, { callId: "1" }), { failure: "uncertain" });
      await query("SELECT idem_configure_retries($1, base => '0', max_attempts => 3)", [
        destination,
      ]);
      // The call of an attempt without a result, more often than there are attempts.
      for (let n = 0; n < 5; n += 1) {
        await assert.rejects(call({ order: "p" }, { callId: "1" }), other);
      }
      const repeating = once(pool, destination, tool, { ...OPTIONS, onUnknown: "repeat" });
      await repeating({ order: "o" }, { callId: "1" });
      // The completed call.
      await assert.rejects(call({ order: "p" }, { callId: "1" }), other);
      assert.equal(calls.length, 2);
      // What is no part of the request may differ.
      const request = () => ({ order: "o" });
      const narrow = once(pool, destination, tool, { ...OPTIONS, request });
      await narrow({ order: "p" }, { callId: "1" });
      assert.equal(calls.length, 2);
    });

    test("equal ids of two conversations are two calls", async () => {
      const { calls, destination, tool } = await failing();
      const scopes = ["a", "a:b", null];
      for (let n = 0; n < 2; n += 1) {
        for (const [m, scope] of scopes.entries()) {
          const call = once(pool, destination, tool, { ...OPTIONS, scope: () => scope });
          const { call: number } = await call({ order: "o" }, { callId: "b:1" });
          assert.equal(number, m + 1);
        }
      }
      assert.equal(calls.length, scopes.length);
      assert.ok(await isClaimed("by:3:a:b:b:1", destination));
      for (const scope of ["", "a\0", "\ud83e", undefined, 1]) {
        const wrong = { ...OPTIONS, scope: () => scope as string };
        const failed = once(pool, destination, tool, wrong)({ order: "o" }, { callId: "1" });
        await assert.rejects(failed, { name: "TypeError", message: /scope/ });
      }
    });

    test("call in progress is not made a second time", async () => {
      const destination = await newDestination();
      const events = new EventEmitter();
      const tool = async () => {
        events.emit("called");
        await event(events, "end");
        return "done";
      };
      const options = { scope: () => null, id: () => "1", onUnknown: "repeat" } as const;
      const call = once(pool, destination, tool, options);
      const called = event(events, "called");
      const first = call({});
      await called;
      await assert.rejects(call({}), (error) => {
        assert.ok(error instanceof ToolBusyError, String(error));
        assert.ok(error.id === "all:1" && (error.retryAfterMs ?? 0) > 0);
        assert.equal(error.settlement, "redeliver");
        return true;
      });
      events.emit("end");
      assert.equal(await first, "done");
    });

    test("rejected call is never repeated", async () => {
      const { call, calls, destination } = await failing(new CallRefused("declined"));
      const message = 'step "tool" is never made again: declined';
      for (let n = 0; n < 3; n += 1) {
        await assert.rejects(call({ order: "o" }, { callId: "1" }), (error) => {
          assert.ok(error instanceof CallFailedError, String(error));
          assert.deepEqual([error.failure, error.message], ["refused", message]);
        assert.equal(error.settlement, "reject");
          return true;
        });
      }
      assert.equal(calls.length, 1);
      assert.ok(await isClaimed("all:1", destination));
    });

    test("call without effect is made again", async () => {
      const { call, calls } = await failing(new CallNotDone("not sent"));
      await assert.rejects(call({ order: "o" }, { callId: "1" }), { failure: "not_done" });
      assert.equal((await call({ order: "o" }, { callId: "1" })).call, 2);
      assert.equal(calls.length, 2);
    });

    test("unknown call fails at every repetition", async () => {
      const { call, calls, destination } = await failing(new Error("lost"));
      await query("SELECT idem_configure_retries($1, base => '0', max_attempts => 3)", [
        destination,
      ]);
      await assert.rejects(call({ order: "o" }, { callId: "1" }), { failure: "uncertain" });
      // More often than there are attempts.
      for (let n = 0; n < 5; n += 1) {
        await assert.rejects(call({ order: "o" }, { callId: "1" }), { failure: "unknown" });
      }
      assert.equal(calls.length, 1);
    });

    test("call without a further attempt fails", async () => {
      const lost = Array.from({ length: 5 }, () => new Error("lost"));
      const { calls, destination, tool } = await failing(...lost);
      await query("SELECT idem_configure_retries($1, base => '0', max_attempts => 2)", [
        destination,
      ]);
      const call = once(pool, destination, tool, { ...OPTIONS, onUnknown: "repeat" });
      for (let n = 0; n < 2; n += 1) {
        await assert.rejects(call({ order: "o" }, { callId: "1" }), { failure: "uncertain" });
      }
      for (let n = 0; n < 2; n += 1) {
        await assert.rejects(call({ order: "o" }, { callId: "1" }), ToolFailedError);
      }
      assert.equal(calls.length, 2);
    });

    test("result that was recorded in the last attempt is returned", async () => {
      const { call, calls, destination } = await failing();
      await query("SELECT idem_configure_retries($1, base => '0', max_attempts => 1)", [
        destination,
      ]);
      // An attempt that ends between the record and the completion.
      const held = await lease(pool, { id: "all:1", destination });
      assert.ok(held.outcome === "acquired");
      const { onUnknown } = OPTIONS;
      await held.once("tool", { order: "o" }, () => Promise.resolve("done"), { onUnknown });
      await held.release({ error: "killed" });
      for (let n = 0; n < 2; n += 1) {
        assert.equal(await call({ order: "o" }, { callId: "1" }), "done");
      }
      assert.equal(calls.length, 0);
      assert.ok(await isClaimed("all:1", destination));
    });

    test("order of the members of arguments makes no difference", async () => {
      const { calls, destination, tool } = await failing();
      const call = once(pool, destination, tool as Tool<object, Context, unknown>, {
        ...OPTIONS,
        id: (_, { callId }) => callId,
      });
      for (const args of [{ a: 1, b: { c: 2, d: 3 } }, { b: { d: 3, c: 2 }, a: 1 }]) {
        await call(args, { callId: "1" });
      }
      assert.equal(calls.length, 1);
    });

    test("arguments that are no JSON need no attempt", async () => {
      const { calls, destination, tool } = await failing();
      const call = once(pool, destination, tool as Tool<object, Context, unknown>, {
        ...OPTIONS,
        id: (_, { callId }) => callId,
      });
      await query("SELECT idem_configure_retries($1, base => '0', max_attempts => 1)", [
        destination,
      ]);
      await assert.rejects(call({ cents: 1n }, { callId: "1" }), TypeError);
      await call({ cents: 1 }, { callId: "1" });
      assert.equal(calls.length, 1);
    });

    test("call whose result cannot be stored is never made again", async () => {
      const destination = await newDestination();
      let calls = 0;
      const call = once(pool, destination, () => Promise.resolve({ cents: 1n, calls: ++calls }), {
        scope: () => null,
        id: () => "1",
        onUnknown: "repeat",
      });
      for (let n = 0; n < 3; n += 1) {
        await assert.rejects(call({}), {
          name: "CallFailedError",
          failure: "refused",
          message: /is never made again: the call was made, and its result cannot be stored/,
        });
      }
      assert.equal(calls, 1);
      assert.ok(await isClaimed("all:1", destination));
    });

    test("generator as a tool is an error", () => {
      /* eslint-disable @typescript-eslint/require-await */
      const tools = [function* () { yield 1; }, async function* () { yield 1; }];
      for (const tool of tools) {
        const wrong = tool as unknown as Tool<object, unknown, number>;
        const options = { scope: () => null, id: () => "1", onUnknown: "fail" } as const;
        const wrap = () => once(pool, "tools.t", wrong, options);
        assert.throws(wrap, { name: "TypeError", message: /generator/ });
      }
    });

    test("message that was processed without a call fails", async () => {
      const { call, calls, destination } = await failing();
      await process(pool, { id: "all:1", destination }, () => Promise.resolve());
      await assert.rejects(call({ order: "o" }, { callId: "1" }), {
        name: "ToolFailedError",
        message: 'the call "all:1" was processed, and its result is not recorded',
      });
      assert.equal(calls.length, 0);
    });

    test("close", close);
  });
}

/** The points at which a process is killed, and what is known about the call then. */
const POINTS = [
  { point: "before the step", refunds: 0, known: "new" },
  { point: "before the call", refunds: 0, known: "unknown" },
  { point: "during the call", refunds: 1, known: "unknown" },
  { point: "before the record", refunds: 1, known: "unknown" },
  { point: "before the completion", refunds: 1, known: "done" },
  { point: "before the result", refunds: 1, known: "done" },
] as const;

describe("tools whose process is killed", { concurrency: false }, () => {
  const { pool, close } = POOLS["pg"]?.() ?? assert.fail();

  /** Kills a process at this point. Returns the destination of the call. */
  async function killed(point: string, gateway: Gateway): Promise<string> {
    const destination = await newDestination();
    gateway.isSilent = point === "during the call";
    const program = await start("tool", point, "1", destination, gateway.url);
    await program.kill();
    assert.equal(program.line, point);
    gateway.isSilent = false;
    return destination;
  }

  function repeated(destination: string, { url }: Gateway, onUnknown: OnUnknown<Refund>) {
    const call = once(
      pool,
      destination,
      (_args: Args, _context, { idempotencyKey }) => refund(url, idempotencyKey),
      { scope: () => null, id: () => "1", onUnknown },
    );
    return untilFree(() => call({ order: "o-1" }));
  }

  async function openGateway(t: TestContext): Promise<Gateway> {
    const gateway = await startGateway();
    t.after(() => gateway.close());
    return gateway;
  }

  for (const { point, refunds, known } of POINTS) {
    test(`killed ${point}, with a query: one refund`, async (t) => {
      const gateway = await openGateway(t);
      const destination = await killed(point, gateway);
      assert.equal(gateway.refunds.length, refunds);
      for (let n = 0; n < 2; n += 1) {
        const result = await repeated(destination, gateway, async ({ idempotencyKey }) => {
          const found = await find(gateway.url, idempotencyKey);
          return found === null ? null : { found };
        });
        assert.deepEqual([result.refund], gateway.refunds);
      }
    });

    test(`killed ${point}, with fail: no refund if unknown`, async (t) => {
      const gateway = await openGateway(t);
      const destination = await killed(point, gateway);
      const result = repeated(destination, gateway, "fail");
      if (known === "unknown") await assert.rejects(result, { failure: "unknown" });
      else assert.deepEqual([(await result).refund], gateway.refunds);
      assert.equal(gateway.refunds.length, known === "new" ? 1 : refunds);
    });

    // The broken variant that the tests above find: the gateway does not honour keys.
    test(`killed ${point}, with repeat: a refund if unknown`, async (t) => {
      const gateway = await openGateway(t);
      const destination = await killed(point, gateway);
      await repeated(destination, gateway, "repeat");
      assert.equal(gateway.refunds.length, known === "unknown" ? refunds + 1 : 1);
      assert.equal(new Set(gateway.refunds).size, 1);
    });
  }

  test("close", close);
});
