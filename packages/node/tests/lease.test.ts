/** Leases that are renewed in the background. */

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { describe, test } from "node:test";

import type pg from "pg";

import { idem, lease, LeaseLostError, transactions } from "../src/index.js";
import type { Idem, Pool } from "../src/index.js";
import { asExecutor, execute, POOLS } from "./pools.js";
import { start } from "./programs.js";
import { startProxy } from "./proxy.js";
import { isClaimed, query, until } from "./server.js";

await query("CREATE TABLE IF NOT EXISTS work (destination text, note text)");

/** Leases a message that must be free, as soon as it is. */
async function acquired(pool: Pool, id: string, destination: string, leaseMs = 30_000) {
  const endsAt = performance.now() + 20_000;
  for (;;) {
    const held = await lease(pool, { id, destination, leaseMs });
    if (held.outcome === "acquired") return held;
    assert.equal(held.outcome, "in_progress");
    assert.ok(performance.now() < endsAt, "the message stays leased");
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

for (const [name, open] of Object.entries(POOLS)) {
  describe(`leases with ${name}`, { concurrency: false }, () => {
    const { pool, close } = open();
    const destination = `lease-${name}-${randomUUID()}`;

    test("lease is renewed beyond its duration", async () => {
      const held = await acquired(pool, "m-1", destination, 1000);
      const [[until0] = []] = await query(
        "SELECT extract(epoch FROM until) FROM idem.leases WHERE destination = $1",
        [destination],
      );
      await until(
        `SELECT until > to_timestamp($2) + interval '600 ms'
           AND clock_timestamp() > to_timestamp($2)
         FROM idem.leases WHERE destination = $1`,
        [destination, until0],
      );
      const other = await lease(pool, { id: "m-1", destination });
      assert.ok(other.outcome === "in_progress");
      assert.ok((other.retryAfterMs ?? 0) > 0);
      assert.equal(other.settlement, "redeliver");
      assert.equal(held.signal.aborted, false);
      assert.equal(held.settlement, "redeliver");
      const ids = await held.complete({ topic: "t", payload: 1 });
      assert.equal(ids.length, 1);
      assert.equal(await isClaimed("m-1", destination), true);
      assert.equal(held.settlement, "acknowledge");
      await held.dispose();
      const after = await lease(pool, { id: "m-1", destination });
      assert.deepEqual([after.outcome, after.settlement], ["duplicate", "acknowledge"]);
    });

    test("lost lease aborts and completes nothing", async () => {
      const held = await acquired(pool, "m-2", destination, 300);
      const aborted = once(held.signal, "abort");
      await query("SELECT idem_release($1, $2, $3)", ["m-2", destination, String(held.token)]);
      const other = await acquired(pool, "m-2", destination);
      await aborted;
      assert.ok(held.signal.reason instanceof LeaseLostError);
      await assert.rejects(held.complete(), LeaseLostError);
      assert.equal(await isClaimed("m-2", destination), false);
      await held.dispose();
      await other.complete();
      assert.equal(await isClaimed("m-2", destination), true);
    });

    test("lease that cannot be renewed aborts at its end", async () => {
      const single = open({ max: 1 });
      const held = await acquired(single.pool, "m-3", destination, 300);
      const aborted = once(held.signal, "abort");
      // The function has the only connection of the pool until the lease is lost.
      const completed = held.complete(async (client) => {
        await aborted;
        await execute(client, "INSERT INTO work VALUES ($1, 'late')", [destination]);
        return undefined;
      });
      // The lease has expired, but no other process has acquired the message.
      await completed;
      assert.ok(held.signal.reason instanceof LeaseLostError);
      assert.equal(await isClaimed("m-3", destination), true);
      await single.close();
    });

    test("lease whose renewal fails until its end keeps the cause", async (t) => {
      const proxy = await startProxy();
      const through = open(proxy.settings);
      t.after(() => through.close());
      // node-postgres reports the loss of an idle connection.
      (through.pool as Partial<pg.Pool>).on?.("error", () => undefined);
      const held = await acquired(through.pool, "m-21", destination, 600);
      const aborted = once(held.signal, "abort");
      await proxy.close();
      // The timers of a renewal do not keep the process alive.
      const alive = setInterval(() => undefined, 1000);
      await aborted;
      clearInterval(alive);
      const reason: unknown = held.signal.reason;
      assert.ok(reason instanceof LeaseLostError);
      assert.match(String(reason.cause), /IdemError: .*(ECONNREFUSED|Connection|connection)/);
      await held.dispose();
    });

    test("killed holder loses its lease", async () => {
      const holder = await start("hold", name, "m-4", destination, "1500");
      assert.equal(holder.line, "acquired");
      const early = await lease(pool, { id: "m-4", destination });
      assert.equal(early.outcome, "in_progress");
      await holder.kill();
      const held = await acquired(pool, "m-4", destination);
      assert.equal(held.attempt, 2);
      assert.match(held.lastError ?? "", /lease expired/);
      await held.complete();
    });

    test("disposed lease is released with an error", async () => {
      let disposed: AbortSignal;
      {
        await using held = await acquired(pool, "m-5", destination, 300);
        assert.equal(held.attempt, 1);
        disposed = held.signal;
      }
      const [[last] = []] = await query(
        "SELECT (idem_acquire($1, $2)).outcome::text",
        ["m-5", destination],
      );
      assert.equal(last, "in_progress");
      const held = await acquired(pool, "m-5", destination);
      assert.equal(held.attempt, 2);
      assert.equal(held.lastError, "the attempt ended without a completion");
      await held.release();
      // More than the duration of the lease has passed: a renewal would have failed.
      assert.equal(disposed.aborted, false);
    });

    test("release without an error does not count", async () => {
      const first = await acquired(pool, "m-6", destination);
      assert.equal(await first.release(), 0);
      assert.equal(first.settlement, "redeliver");
      const second = await acquired(pool, "m-6", destination);
      assert.equal(second.attempt, 1);
      const pause = await second.release({ error: "the carrier does not answer" });
      assert.ok(pause !== null && pause > 500 && pause < 1500, String(pause));
    });

    test("completion commits with its work", async () => {
      const held = await acquired(pool, "m-7", destination);
      const failure = new Error("the work failed");
      const work = "INSERT INTO work VALUES ($1, 'completed')";
      await assert.rejects(
        held.complete(async (client) => {
          await execute(client, work, [destination]);
          throw failure;
        }),
        failure,
      );
      assert.equal(await isClaimed("m-7", destination), false);
      await held.complete(async (client) => {
        assert.equal(typeof asExecutor(client), name === "pg" ? "object" : "function");
        await execute(client, work, [destination]);
        return [{ topic: "t", payload: null }];
      });
      const rows = await query(
        "SELECT count(*)::int FROM work WHERE destination = $1 AND note = 'completed'",
        [destination],
      );
      assert.deepEqual(rows, [[1]]);
    });

    test("completion whose work has ended its transaction is an error", async () => {
      const held = await acquired(pool, "m-20", destination);
      const completed = (statement: string) =>
        held.complete(async (client) => {
          await execute(client, statement);
          return { topic: "t", payload: 1 };
        });
      await assert.rejects(completed("COMMIT"), { code: "2D000" });
      await assert.rejects(completed("ROLLBACK"), { name: "IdemError", sqlstate: "25P01" });
      await assert.rejects(completed("ROLLBACK AND CHAIN"), { sqlstate: "25P01" });
      assert.equal(await isClaimed("m-20", destination), false);
      await held.complete();
      assert.equal(await isClaimed("m-20", destination), true);
    });

    test("lease is renewed after a completion that failed", async () => {
      const held = await acquired(pool, "m-10", destination, 1000);
      const failed = held.complete({ topic: "", payload: 1 });
      await assert.rejects(failed, { name: "IdemError", sqlstate: "22023" });
      const leases = `SELECT extract(epoch FROM until) FROM idem.leases
                      WHERE destination = $1 AND id = 'm-10'`;
      const [[until0] = []] = await query(leases, [destination]);
      await until(
        `SELECT until > to_timestamp($2) + interval '600 ms'
         FROM idem.leases WHERE destination = $1 AND id = 'm-10'`,
        [destination, until0],
      );
      await held.complete();
      assert.equal(held.signal.aborted, false);
      assert.equal(await isClaimed("m-10", destination), true);
    });

    test("acquired message is redelivered until it is completed", async () => {
      const on = <T>(work: (functions: Idem) => Promise<T>) =>
        transactions(pool)((client) => work(idem(asExecutor(client))));
      const first = await on((functions) => functions.acquire("m-15", destination));
      assert.ok(first.outcome === "acquired");
      assert.equal(first.settlement, "redeliver");
      await on((functions) => functions.complete(first));
      const after = await on((functions) => functions.acquire("m-15", destination));
      assert.deepEqual(after, { outcome: "duplicate", settlement: "acknowledge" });
    });

    test("exhausted message is buried", async () => {
      const limited = `${destination}-limited`;
      await query("SELECT idem_configure_retries($1, max_attempts => 1)", [limited]);
      const first = await acquired(pool, "m-8", limited);
      assert.equal(await first.release({ error: "broken" }), null);
      const exhausted = await lease(pool, { id: "m-8", destination: limited });
      assert.ok(exhausted.outcome === "exhausted");
      assert.equal(exhausted.settlement, "reject");
      await exhausted.bury({ payload: { a: 1 }, error: "broken" });
      assert.equal(exhausted.settlement, "acknowledge");
      const after = await lease(pool, { id: "m-8", destination: limited });
      assert.deepEqual([after.outcome, after.settlement], ["dead", "acknowledge"]);
      const rows = await query(
        "SELECT convert_from(payload, 'UTF8') FROM idem.dead_letters WHERE destination = $1",
        [limited],
      );
      assert.deepEqual(rows, [['{"a":1}']]);
    });

    test("completion with a lost reply is sent again", async (t) => {
      const proxy = await startProxy();
      const through = open(proxy.settings);
      t.after(async () => {
        await through.close();
        await proxy.close();
      });
      const held = await acquired(through.pool, "m-9", destination);
      proxy.loseNextCommit();
      const ids = await held.complete({ topic: "t", payload: 1 });
      assert.equal(proxy.lost(), 1);
      const rows = await query(
        "SELECT message_id::text FROM idem_effects($1, $2)",
        ["m-9", destination],
      );
      assert.deepEqual(rows, [ids]);
    });

    test("repeated completion records nothing", async () => {
      const held = await acquired(pool, "m-11", destination, 300);
      const ids = await held.complete({ topic: "t", payload: 1 });
      await assert.rejects(held.complete({ topic: "t", payload: 2 }), LeaseLostError);
      const again = held.complete(() => Promise.resolve({ topic: "t", payload: 3 }));
      await assert.rejects(again, LeaseLostError);
      const effects = "SELECT message_id::text FROM idem_effects($1, $2)";
      assert.deepEqual(await query(effects, ["m-11", destination]), [ids]);
      // More than the duration of the lease: a renewal would have failed.
      await new Promise((resolve) => setTimeout(resolve, 400));
      assert.equal(held.signal.aborted, false);
    });

    test("end of a lease does not wait for an open transaction", async () => {
      const held = await acquired(pool, "m-12", destination);
      await transactions(pool)(async (client) => {
        await idem(asExecutor(client)).complete(held, { topic: "t", payload: 1 });
        const start = performance.now();
        await held.dispose();
        assert.ok(performance.now() - start < 10_000);
      });
      assert.equal(await isClaimed("m-12", destination), true);
    });

    test("end of a lease does not wait for a connection", { timeout: 10_000 }, async () => {
      const single = open({ max: 1 });
      const held = await acquired(single.pool, "m-13", destination, 300);
      await transactions(single.pool)(async () => {
        // This transaction has the only connection of the pool.
        await held.dispose();
      });
      await single.close();
      const next = await acquired(pool, "m-13", destination);
      assert.equal(next.attempt, 2);
      await next.complete();
    });

    test("connection is no pool", async () => {
      await assert.rejects(lease({} as Pool, { id: "m", destination }), TypeError);
    });

    test("close", close);
  });
}
