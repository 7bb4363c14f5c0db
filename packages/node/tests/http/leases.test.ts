/** The mode with a lease: behaviour that differs from the mode with a transaction. */

import assert from "node:assert/strict";
import { describe, test } from "node:test";

import type pg from "pg";

import { lease } from "../../src/index.js";
import { ask } from "./client.js";
import { KINDS } from "./config.js";
import { openDatabase } from "./database.js";
import { withService, type Service } from "./service.js";
import { until } from "./state.js";

const observer = await openDatabase();
const HELD = ask("k").with("x-hold");
const LEASED = Object.entries(KINDS).filter(([, { mode }]) => mode === "lease");

/** Leases the request with key "k" for a process that has crashed. */
async function acquire(service: Service, milliseconds: number): Promise<void> {
  const { destination } = service.work.config;
  const text = "SELECT outcome FROM idem_acquire('all:k', $1, lease => $2)";
  const interval = `${String(milliseconds)} milliseconds`;
  assert.equal(await service.work.value(text, [destination, interval]), "acquired");
}

/** Ends the lease of the request with key "k". */
async function expire({ work }: Service, on: Pick<pg.Pool, "query"> = observer): Promise<void> {
  for (const table of ["pending_0", "pending_1"]) {
    await on.query(
      `UPDATE idem.${table} SET due_at = clock_timestamp() - interval '1 second' ` +
        "WHERE destination = (SELECT id FROM idem.destination WHERE name = $1)",
      [work.config.destination],
    );
  }
}

/** Another process gets the lease when it has ended, before it is renewed, and crashes. */
async function takeOver(service: Service): Promise<void> {
  const client = await observer.connect();
  await client.query("BEGIN");
  await expire(service, client);
  const { rows } = await client.query<{ outcome: string }>(
    "SELECT outcome::text FROM idem_acquire('all:k', $1, lease => '1 second')",
    [service.work.config.destination],
  );
  await client.query("COMMIT");
  client.release();
  assert.equal(rows[0]?.outcome, "acquired");
}

for (const [kind, options] of LEASED) {
  describe(kind, { concurrency: 4 }, () => {
    test("leased request is recorded after a disconnect", () =>
      withService(observer, options, async (service) => {
        await service.disconnecting(HELD, () => service.state.untilHolding(1));
        (await service.send(ask("k"))).assertProblem(409, "in-progress");
        // At a shutdown, the service waits until the request is recorded.
        assert.equal(service.app.running.count, 1);
        assert.equal(await service.app.running.ended(20), 1);
        service.state.release();
        assert.equal(await service.app.running.ended(20_000), 0);
        assert.ok((await service.send(ask("k"))).isReplayed);
        assert.deepEqual([service.runs, await service.work.rows("k")], [1, 2]);
      }));

    test("leased request survives the loss of all connections", () =>
      withService(observer, options, async (service) => {
        const first = service.send(HELD.with("x-status", 404));
        await service.state.untilHolding(1);
        await service.work.untilQuiet();
        // No connection is in use while the handler works.
        assert.equal(await service.work.sessions("state = 'idle in transaction'"), 0);
        assert.ok((await service.work.terminate()) > 0);
        await service.work.untilNoSession();
        service.state.release();
        (await first).assertRun(404, 1);
        (await service.send(ask("k"))).assertReplayOf(await first);
      }));

    test("lost lease returns the response of the other process", () =>
      withService(observer, options, async (service) => {
        const first = service.send(HELD);
        await service.state.untilHolding(1);
        await expire(service);
        const other = await service.send(ask("k").with("x-size", 7));
        other.assertRun(201, 2);
        service.state.release();
        (await first).assertReplayOf(other);
        (await service.send(ask("k"))).assertReplayOf(other);
        assert.equal(await service.work.claims(), 1);
      }));

    test("client of a handler that loses its lease gets 503", () =>
      withService(observer, { ...options, leaseMs: 2000 }, async (service) => {
        const first = service.send(HELD);
        await service.state.untilHolding(1);
        await takeOver(service);
        (await first).assertProblem(503, "in-doubt");
        assert.equal(service.state.aborted, 1);
        service.state.release();
        await service.state.untilNoneRuns();
        assert.equal(await service.work.claims(), 0);
        (await service.sendUntilSettled(ask("k"))).assertRun(201, 2);
      }));

    test("external call is not repeated after a failed request", () =>
      withService(observer, options, async (service) => {
        const charge = ask("k").with("x-charge");
        (await service.send(charge.with("x-status", 500))).assertRun(500, 1);
        const done = await service.send(charge);
        done.assertRun(201, 2);
        (await service.send(charge)).assertReplayOf(done);
        assert.equal(service.state.charges, 1);
      }));

    test("key is bound to its request when the handler begins", () =>
      withService(observer, options, async (service) => {
        (await service.send(ask("k").with("x-status", 500))).assertRun(500, 1);
        for (let n = 0; n < 2; n += 1) {
          const other = await service.send(ask("k").to({ body: "another body" }));
          other.assertProblem(422, "mismatch");
        }
        (await service.send(ask("k"))).assertRun(201, 2);
      }));
  });
}

describe("lease", { concurrency: 4 }, () => {
  const options = { framework: "express", mode: "lease" } as const;

  test("lease is renewed while the handler runs", () =>
    withService(observer, { ...options, leaseMs: 400 }, async (service) => {
      const first = service.send(HELD);
      await service.state.untilHolding(1);
      const end = () =>
        service.work.value(
          "SELECT extract(epoch FROM max(until))::float8 FROM idem.leases WHERE destination = $1",
          [service.work.config.destination],
        );
      const firstEnd = Number(await end());
      await until(async () => Number(await end()) > firstEnd + 0.3);
      (await service.send(ask("k"))).assertProblem(409, "in-progress");
      service.state.release();
      (await first).assertRun(201, 1);
      assert.equal(service.runs, 1);
    }));

  test("request of a crashed process runs after its lease", () =>
    withService(observer, options, async (service) => {
      await acquire(service, 300);
      (await service.send(ask("k"))).assertProblem(409, "in-progress");
      (await service.sendUntilSettled(ask("k"))).assertRun(201, 1);
    }));

  test("request without remaining attempts is not run", () =>
    withService(observer, options, async (service) => {
      const { destination } = service.work.config;
      await observer.query("SELECT idem_configure_retries($1, max_attempts => 1)", [destination]);
      await acquire(service, 1);
      for (let n = 0; n < 2; n += 1) {
        (await service.sendUntilSettled(ask("k"))).assertProblem(500, "exhausted");
      }
      assert.deepEqual([service.runs, await service.work.claims()], [0, 0]);
    }));

  test("request that another program has completed gets 409", () =>
    withService(observer, options, async (service) => {
      const { destination } = service.work.config;
      const held = await lease(observer, { id: "all:k", destination });
      assert.ok(held.outcome === "acquired");
      await held.complete();
      (await service.send(ask("k"))).assertProblem(409, "not-recorded");
    }));
});
