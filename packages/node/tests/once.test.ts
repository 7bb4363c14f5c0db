/** External calls of leased messages. */

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { once as event } from "node:events";
import { describe, test } from "node:test";

import { CallFailedError, CallNotDone, CallRefused } from "../src/index.js";
import { lease, LeaseLostError, transactions, type OnUnknown, type Pool } from "../src/index.js";
import { ExternalCalls, type CallOwner } from "../src/calls.js";
import { CommitUnknownError } from "../src/errors.js";
import { Renewal } from "../src/renewal.js";
import { transactorOf } from "../src/transactions/index.js";
import type { Client, Transactor } from "../src/transactions/pool.js";
import { POOLS } from "./pools.js";
import { start } from "./programs.js";
import { startProxy } from "./proxy.js";
import { query } from "./server.js";

async function acquired(pool: Pool, id: string, destination: string, leaseMs = 30_000) {
  const endsAt = performance.now() + 20_000;
  for (;;) {
    const held = await lease(pool, { id, destination, leaseMs });
    if (held.outcome === "acquired") return held;
    assert.ok(performance.now() < endsAt, "the message stays leased");
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

function notCalled(): Promise<never> {
  return Promise.reject(new Error("the call was made"));
}

type Run = Transactor<Client>["run"];

/** Returns the calls of a lease whose transactions `run` executes. The lease is not renewed. */
function callsOf(pool: Pool, held: CallOwner, leaseMs: number, run: (on: Run) => Run) {
  const transactor = transactorOf(pool) as Transactor<Client>;
  const around: Transactor<Client> = {
    transact: (beginning, work) => transactor.transact(beginning, work),
    run: run((work, isolation) => transactor.run(work, isolation)),
    savepoint: (client, part) => transactor.savepoint(client, part),
    fence: () => transactor.fence(),
  };
  const extend = () => new Promise<void>(() => undefined);
  const renewal = new Renewal({ leaseMs, askedAtMs: performance.now(), extend });
  return { calls: new ExternalCalls(around, held, renewal), renewal };
}

async function stateOf(id: string, destination: string, step = "charge"): Promise<unknown> {
  const rows = await query(
    "SELECT state::text, response FROM idem_calls($1, $2) WHERE step = $3",
    [id, destination, step],
  );
  return rows[0];
}

for (const [name, open] of Object.entries(POOLS)) {
  describe(`external calls with ${name}`, { concurrency: false }, () => {
    const { pool, close } = open();
    const destination = `once-${name}-${randomUUID()}`;
    const request = { cents: 500 };

    test("recorded result is returned without a call", async () => {
      const held = await acquired(pool, "m-1", destination);
      const at = new Date("2026-01-02T03:04:05Z");
      const call = () => Promise.resolve({ receipt: "r-1", at, none: undefined });
      const first = await held.once<unknown>("charge", request, call, { onUnknown: "fail" });
      const expected = { receipt: "r-1", at: "2026-01-02T03:04:05.000Z" };
      assert.deepEqual(first, expected);
      assert.deepEqual(await stateOf("m-1", destination), ["done", expected]);
      await held.release();
      const later = await acquired(pool, "m-1", destination);
      const again = await later.once<unknown>("charge", request, notCalled, { onUnknown: "fail" });
      assert.deepEqual(again, expected);
      await assert.rejects(later.once("charge", { cents: 1 }, notCalled, { onUnknown: "fail" }), {
        sqlstate: "23000",
      });
      const silent = () => Promise.resolve<unknown>(undefined);
      const nothing = await later.once("mail", null, silent, { onUnknown: "fail" });
      assert.equal(nothing, null);
      await later.complete();
    });

    /** Kills a process in the middle of its call. Returns the key that the call got. */
    async function killedDuringCall(id: string): Promise<string> {
      const program = await start("call", name, id, destination);
      await program.kill();
      const [key = "", token] = program.line.split(" ");
      assert.match(key, /^[0-9a-f-]{36}$/);
      // The next attempt does not wait until the lease expires.
      await query("SELECT idem_release($1, $2, $3)", [id, destination, token]);
      return key;
    }

    test("killed call is unknown and fails", async () => {
      await killedDuringCall("m-2");
      const held = await acquired(pool, "m-2", destination);
      const failed = held.once("charge", request, notCalled, { onUnknown: "fail" });
      await assert.rejects(failed, (error) => {
        assert.ok(error instanceof CallFailedError, String(error));
        assert.deepEqual([error.failure, error.terminal, error.step], ["unknown", true, "charge"]);
        return true;
      });
      assert.deepEqual(await stateOf("m-2", destination), ["unknown", null]);
    });

    test("killed call is repeated with its key", async () => {
      const key = await killedDuringCall("m-3");
      const held = await acquired(pool, "m-3", destination);
      const call = (context: { idempotencyKey: string; attempt: number }) =>
        Promise.resolve([context.idempotencyKey, context.attempt]);
      const result = await held.once("charge", request, call, { onUnknown: "repeat" });
      assert.deepEqual(result, [key, 2]);
      assert.deepEqual(await stateOf("m-3", destination), ["done", [key, 2]]);
    });

    test("killed call is found by a query", async () => {
      const key = await killedDuringCall("m-4");
      const held = await acquired(pool, "m-4", destination);
      const onUnknown: OnUnknown<string> = (call) => {
        assert.equal(call.idempotencyKey, key);
        assert.ok(call.begunAt instanceof Date);
        return Promise.resolve({ found: "r-4" });
      };
      const result = await held.once("charge", request, notCalled, { onUnknown });
      assert.equal(result, "r-4");
      assert.deepEqual(await stateOf("m-4", destination), ["done", "r-4"]);
    });

    test("killed call that is not found is made", async () => {
      await killedDuringCall("m-5");
      const held = await acquired(pool, "m-5", destination);
      const onUnknown: OnUnknown<string> = () => Promise.resolve(null);
      const call = () => Promise.resolve("r-5");
      assert.equal(await held.once("charge", request, call, { onUnknown }), "r-5");
    });

    test("query that fails leaves the call unknown", async () => {
      await killedDuringCall("m-6");
      const held = await acquired(pool, "m-6", destination);
      const cause = new Error("no reply");
      const onUnknown: OnUnknown<string> = () => Promise.reject(cause);
      const failed = held.once("charge", request, notCalled, { onUnknown });
      await assert.rejects(failed, { name: "CallFailedError", failure: "uncertain", cause });
      assert.deepEqual(await stateOf("m-6", destination), ["unknown", null]);
    });

    test("query without effect takes its attempt back", async () => {
      await killedDuringCall("m-22");
      const held = await acquired(pool, "m-22", destination);
      const cause = new CallNotDone("not sent");
      const onUnknown: OnUnknown<string> = () => Promise.reject(cause);
      const failed = held.once("charge", request, notCalled, { onUnknown });
      await assert.rejects(failed, { name: "CallFailedError", failure: "not_done", cause });
      // Only the attempt whose process was killed may have had its effect, until a person knows.
      assert.deepEqual(await stateOf("m-22", destination), ["unknown", null]);
      await query("SELECT idem_fail_call($1, $2, 'charge', 'not found')", ["m-22", destination]);
      assert.deepEqual(await stateOf("m-22", destination), ["new", null]);
    });

    test("query that finds a rejection records it", async () => {
      await killedDuringCall("m-21");
      const held = await acquired(pool, "m-21", destination);
      const cause = new CallRefused("declined");
      const onUnknown: OnUnknown<string> = () => Promise.reject(cause);
      for (const found of [onUnknown, notCalled]) {
        const failed = held.once("charge", request, notCalled, { onUnknown: found });
        await assert.rejects(failed, {
          failure: "refused",
          message: 'step "charge" is never made again: declined',
        });
      }
    });

    test("error of the call decides about the next attempt", async () => {
      const held = await acquired(pool, "m-7", destination);
      const options = { onUnknown: "fail" } as const;
      const attempt = (error: Error) =>
        held.once<never>("charge", request, () => Promise.reject(error), options);
      const cause = new Error("connection refused");
      await assert.rejects(attempt(new CallNotDone("nothing was sent", { cause })), {
        failure: "not_done",
        terminal: false,
      });
      const [[error] = []] = await query("SELECT error FROM idem_calls($1, $2)", [
        "m-7",
        destination,
      ]);
      assert.equal(error, "nothing was sent: connection refused");
      // The next attempt makes the call as if for the first time.
      await assert.rejects(attempt(new CallRefused("declined")), {
        failure: "refused",
        terminal: true,
      });
      await assert.rejects(held.once("charge", request, notCalled, options), {
        failure: "refused",
        message: 'step "charge" is never made again: declined',
      });
      const uncertain = held.once<never>("mail", 1, () => Promise.reject(cause), options);
      await assert.rejects(uncertain, { failure: "uncertain", terminal: false, cause });
      assert.deepEqual(await stateOf("m-7", destination, "mail"), ["unknown", null]);
    });

    /** Makes a call whose result cannot be stored, twice. Returns the error that is recorded. */
    async function unstorable(on: Pool, id: string, value: () => unknown): Promise<unknown> {
      const held = await acquired(on, id, destination);
      const options = { onUnknown: "repeat" } as const;
      let made = 0;
      const call = () => {
        made += 1;
        return Promise.resolve(value());
      };
      for (let n = 0; n < 2; n += 1) {
        await assert.rejects(held.once("charge", request, call, options), (error) => {
          assert.ok(error instanceof CallFailedError, String(error));
          assert.deepEqual([error.failure, error.terminal], ["refused", true]);
          assert.match(error.message, /^step "charge" is never made again: the call was made, and/);
          return true;
        });
      }
      assert.equal(made, 1);
      await held.complete();
      const text = "SELECT state::text, error FROM idem_calls($1, $2)";
      const [[state, error] = []] = await query(text, [id, destination]);
      assert.equal(state, "failed");
      return error;
    }

    test("result that is no JSON is never made again", async () => {
      const cycle: unknown[] = [];
      cycle.push(cycle);
      const values: readonly (() => unknown)[] = [
        () => 1n, () => () => 1, () => Symbol("s"), () => cycle, () => ({ cents: [NaN] }),
        () => ({ cents: -Infinity }), () => new Map([[1, 2]]), () => ({ in: new Set([1]) }),
        () => new Error("e"), () => ({ of: Promise.resolve(1) }), () => new Uint8Array(1),
        () => new Date(NaN), () => ({ call: () => 1 }), () => Object(1) as unknown,
        // eslint-disable-next-line @typescript-eslint/require-await
        () => (async function* () { yield 1; })(),
        () => ({ toJSON() { throw new Error("no"); } }),
      ];
      for (const [n, value] of values.entries()) {
        const error = await unstorable(pool, `m-16-${String(n)}`, value);
        assert.match(String(error), /^the call was made, and its result cannot be stored: ./);
      }
    });

    test("result that the server refuses is never made again", async () => {
      const user = `test_${randomUUID().replaceAll("-", "")}`;
      await query(`CREATE ROLE ${user} LOGIN`);
      await query(`SELECT idem_grant($1, 'consumer')`, [user]);
      const functions = "SELECT oid::regprocedure::text FROM pg_proc WHERE proname = $1";
      for (const [name] of await query(functions, ["idem_finish_call"])) {
        await query(`REVOKE EXECUTE ON FUNCTION ${String(name)} FROM ${user}`);
      }
      const limited = open({ user });
      const error = await unstorable(limited.pool, "m-17", () => "r-17");
      assert.match(String(error), /stored: permission denied for function idem_finish_call$/);
      await limited.close();
      await query(`DROP OWNED BY ${user}; DROP ROLE ${user}`);
    });

    test("error of the environment leaves the call unknown", async (t) => {
      const user = `test_${randomUUID().replaceAll("-", "")}`;
      await query(`CREATE ROLE ${user} LOGIN`);
      await query(`SELECT idem_grant($1, 'consumer')`, [user]);
      // The response is the SQLSTATE of the error.
      await query(`CREATE SCHEMA ${user}`);
      await query(`GRANT USAGE ON SCHEMA ${user} TO ${user}`);
      await query(`ALTER ROLE ${user} SET search_path = ${user}, public`);
      await query(`CREATE FUNCTION ${user}.idem_finish_call(text, text, text, response json)
        RETURNS void LANGUAGE plpgsql AS $$
        BEGIN RAISE 'cannot' USING ERRCODE = response #>> '{}'; END $$`);
      const limited = open({ user });
      t.after(async () => {
        await limited.close();
        await query(`DROP SCHEMA ${user} CASCADE; DROP OWNED BY ${user}; DROP ROLE ${user}`);
      });
      const options = { onUnknown: "fail" } as const;
      const made = async (sqlstate: string) => {
        const held = await acquired(limited.pool, `m-23-${sqlstate}`, destination);
        return held.once("charge", request, () => Promise.resolve(sqlstate), options);
      };
      for (const sqlstate of ["25006", "53100", "57014", "58030"]) {
        await assert.rejects(made(sqlstate), { name: "IdemError", sqlstate });
        assert.deepEqual(await stateOf(`m-23-${sqlstate}`, destination), ["unknown", null]);
      }
      for (const sqlstate of ["22003", "54000", "XX000"]) {
        await assert.rejects(made(sqlstate), { name: "CallFailedError", failure: "refused" });
        assert.deepEqual(await stateOf(`m-23-${sqlstate}`, destination), ["failed", null]);
      }
    });

    test("found result that cannot be stored is never made again", async () => {
      await killedDuringCall("m-18");
      const held = await acquired(pool, "m-18", destination);
      const onUnknown: OnUnknown<unknown> = () => Promise.resolve({ found: 1n });
      const failed = held.once<unknown>("charge", request, notCalled, { onUnknown });
      await assert.rejects(failed, { name: "CallFailedError", failure: "refused" });
      const [state] = (await stateOf("m-18", destination)) as unknown[];
      assert.equal(state, "failed");
    });

    test("query that returns no result leaves the call unknown", async () => {
      await killedDuringCall("m-19");
      const held = await acquired(pool, "m-19", destination);
      for (const found of [undefined, {}, "r-19"]) {
        const onUnknown = (() => Promise.resolve(found)) as unknown as OnUnknown<string>;
        const failed = held.once("charge", request, notCalled, { onUnknown });
        await assert.rejects(failed, { name: "CallFailedError", failure: "uncertain" });
      }
      assert.deepEqual(await stateOf("m-19", destination), ["unknown", null]);
    });

    test("generator as a call is an error before the call", async () => {
      const held = await acquired(pool, "m-20", destination);
      // eslint-disable-next-line @typescript-eslint/require-await
      const call = async function* () { yield 1; } as unknown as () => Promise<number>;
      const failed = held.once("charge", request, call, { onUnknown: "fail" });
      await assert.rejects(failed, { name: "TypeError", message: /generator/ });
      assert.equal(await stateOf("m-20", destination), undefined);
    });

    test("lost reply to the start of a call makes the call", async (t) => {
      const proxy = await startProxy();
      const through = open(proxy.settings);
      t.after(async () => {
        await through.close();
        await proxy.close();
      });
      const held = await acquired(through.pool, "m-10", destination);
      proxy.loseNextCommit();
      const call = () => Promise.resolve("r-10");
      assert.equal(await held.once("charge", request, call, { onUnknown: "fail" }), "r-10");
      assert.equal(proxy.lost(), 1);
      assert.deepEqual(await stateOf("m-10", destination), ["done", "r-10"]);
    });

    test("start that was rolled back is not new", async () => {
      const held = await acquired(pool, "m-13", destination);
      let tries = 0;
      const { calls, renewal } = callsOf(pool, held, 30_000, (run) => async (work) => {
        tries += 1;
        if (tries > 1) return run(work);
        const rollback = new Error("the server rolls back");
        const rolledBack = run(async (client) => {
          await work(client);
          throw rollback;
        });
        await assert.rejects(rolledBack, rollback);
        // Another process begins the step before the retry.
        const begun = ["m-13", destination, JSON.stringify(request)];
        await query("SELECT idem_begin_call($1, $2, 'charge', $3)", begun);
        throw new CommitUnknownError("the reply was lost", { retryable: true });
      });
      const failed = calls.once("charge", request, notCalled, { onUnknown: "fail" });
      await assert.rejects(failed, { name: "CallFailedError", failure: "unknown" });
      assert.equal(tries, 2);
      renewal.stop();
    });

    test("process paused until the lease ended makes no call", async () => {
      const leaseMs = 500;
      const held = await acquired(pool, "m-14", destination);
      const { calls, renewal } = callsOf(pool, held, leaseMs, (run) => async (work) => {
        const result = await run(work);
        // The process executes nothing, also no timer, until the lease has ended.
        const resumesAt = performance.now() + leaseMs;
        while (performance.now() < resumesAt);
        return result;
      });
      const failed = calls.once("charge", request, notCalled, { onUnknown: "repeat" });
      await assert.rejects(failed, LeaseLostError);
      assert.ok(renewal.signal.reason instanceof LeaseLostError);
      assert.deepEqual(await stateOf("m-14", destination), ["unknown", null]);
    });

    test("step in progress is not executed a second time", async () => {
      const held = await acquired(pool, "m-15", destination);
      const options = { onUnknown: "repeat" } as const;
      let made = 0;
      let end: (() => void) | undefined;
      const ended = new Promise<void>((resolve) => (end = resolve));
      const call = async () => {
        made += 1;
        await ended;
        return "r-15";
      };
      const first = held.once("charge", request, call, options);
      await assert.rejects(held.once("charge", request, notCalled, options), {
        name: "IdemError",
        message: 'step "charge" is in progress under this lease',
        retryable: false,
      });
      // Another step is independent.
      assert.equal(await held.once("mail", 1, () => Promise.resolve("m"), options), "m");
      end?.();
      assert.equal(await first, "r-15");
      assert.equal(await held.once("charge", request, notCalled, options), "r-15");
      assert.equal(made, 1);
    });

    /** Makes a call in which the lease is lost, and another process begins the call. */
    async function losing<T>(id: string, call: () => Promise<T>): Promise<unknown> {
      const held = await acquired(pool, id, destination);
      const lost = async () => {
        await query("SELECT idem_release($1, $2, $3)", [id, destination, String(held.token)]);
        const next = await acquired(pool, id, destination);
        const begun = [id, destination, JSON.stringify(request), String(next.token)];
        await query("SELECT idem_begin_call($1, $2, 'charge', $3, token => $4)", begun);
        return call();
      };
      return held.once<unknown>("charge", request, lost, { onUnknown: "fail" });
    }

    test("failure is recorded by the holder of the lease only", async () => {
      const cause = new CallRefused("declined");
      const failed = losing("m-11", () => Promise.reject(cause));
      await assert.rejects(failed, { name: "LeaseLostError", cause });
      assert.deepEqual(await stateOf("m-11", destination), ["unknown", null]);
    });

    test("result without JSON is recorded after the lease is lost", async () => {
      const failed = losing("m-24", () => Promise.resolve(1n));
      await assert.rejects(failed, { name: "CallFailedError", failure: "refused" });
      assert.deepEqual(await stateOf("m-24", destination), ["failed", null]);
    });

    test("long error of a call is cut", async () => {
      const held = await acquired(pool, "m-12", destination);
      const call = () => Promise.reject(new CallRefused(`x\0${"é".repeat(9000)}`));
      await assert.rejects(held.once("charge", request, call, { onUnknown: "fail" }), {
        failure: "refused",
      });
      const text = "SELECT error FROM idem_calls($1, $2)";
      assert.deepEqual(await query(text, ["m-12", destination]), [[`x${"é".repeat(999)}`]]);
      await held.release({ error: `${"é".repeat(9000)}\0` });
      const later = await acquired(pool, "m-12", destination);
      assert.match(later.lastError ?? "", /^é+$/);
      await later.complete();
    });

    test("lost lease makes no call", async () => {
      const held = await acquired(pool, "m-8", destination);
      await query("SELECT idem_release($1, $2, $3)", ["m-8", destination, String(held.token)]);
      const failed = held.once("charge", request, notCalled, { onUnknown: "repeat" });
      await assert.rejects(failed, LeaseLostError);
      assert.equal(await stateOf("m-8", destination), undefined);
      await held.dispose();

      const short = await acquired(pool, "m-8", destination, 300);
      const aborted = event(short.signal, "abort");
      await query("SELECT idem_release($1, $2, $3)", ["m-8", destination, String(short.token)]);
      await aborted;
      const late = short.once("charge", request, notCalled, { onUnknown: "repeat" });
      await assert.rejects(late, LeaseLostError);
    });

    test("lease that was not renewed begins no call", async () => {
      const single = open({ max: 1 });
      const held = await acquired(single.pool, "m-9", destination, 300);
      // The only connection is in use until the lease has ended.
      await transactions(single.pool)(() => event(held.signal, "abort"));
      const failed = held.once("charge", request, notCalled, { onUnknown: "repeat" });
      await assert.rejects(failed, LeaseLostError);
      assert.equal(await stateOf("m-9", destination), undefined);
      await single.close();
    });

    test("close", close);
  });
}
