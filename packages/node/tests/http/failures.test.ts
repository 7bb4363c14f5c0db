/** Failures while a request is processed in a transaction or under a lease. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, type AddressInfo } from "node:net";
import { describe, test } from "node:test";

import { ask } from "./client.js";
import { configOf, DRIVERS, KINDS, type Config, type Driver } from "./config.js";
import { openDatabase, Work, WAITING } from "./database.js";
import { Proxy, type Cut } from "./proxy.js";
import { withService, withServiceOn, type Service } from "./service.js";
import { until } from "./state.js";

const observer = await openDatabase();
const HELD = ask("k").with("x-hold");

/** Executes a test with a service whose middleware reaches the server through a proxy. */
async function withProxy(
  options: Partial<Config>,
  run: (service: Service, proxy: Proxy) => Promise<void>,
): Promise<void> {
  const proxy = await Proxy.start();
  try {
    const config = configOf({ ...options, host: "127.0.0.1", port: proxy.port });
    const work = await Work.create(config, observer);
    await withServiceOn(work, config, (service) => run(service, proxy));
  } finally {
    await proxy.close();
  }
}

function inTransaction(kind: string, options: Partial<Config>): void {
  describe(`transaction of ${kind}`, { concurrency: 6 }, () => {
    test("disconnect rolls back and a repeated request runs", () =>
      withService(observer, options, async (service) => {
        await service.disconnecting(HELD, () => service.state.untilHolding(1));
        // At once, although the handler still runs.
        await service.work.untilQuiet();
        await until(() => service.state.aborted === 1);
        await service.work.assertUntouched();
        (await service.sendUntilSettled(ask("k"))).assertRun(201, 2);
        service.state.release();
        await service.state.untilNoneRuns();
        assert.deepEqual([await service.work.rows("k"), await service.work.claims()], [2, 1]);
        assert.ok((await service.send(ask("k"))).isReplayed);
      }));

    test("disconnect during a statement rolls back", () =>
      withService(observer, options, async (service) => {
        const request = ask("k").with("x-lock", service.work.lock);
        await service.work.locked(async (unlock) => {
          await service.disconnecting(request, () => service.work.untilWaiting());
          await until(() => service.state.aborted === 1);
          await unlock();
          await service.state.untilNoneRuns();
          await service.work.untilQuiet();
        });
        await service.work.assertUntouched();
        (await service.sendUntilSettled(ask("k"))).assertRun(201, 2);
      }));

    test("disconnect during the commit does not stop it", () =>
      withService(observer, options, async (service) => {
        const { work } = service;
        await work.waitAtCommit();
        await work.locked(async (unlock) => {
          await service.disconnecting(ask("k"), () => work.untilWaiting());
          (await service.send(ask("k"))).assertProblem(409, "in-progress");
          assert.equal(await work.sessions(WAITING), 1);
          await unlock();
        });
        await until(async () => (await work.claims()) === 1);
        const again = await service.send(ask("k"));
        assert.deepEqual([again.isReplayed, again.header("x-run")], [true, "1"]);
        assert.deepEqual([service.runs, await work.rows("k")], [1, 2]);
      }));

    test("waiting request runs no handler after a disconnect", () =>
      withService(observer, { ...options, poolSize: 1 }, async (service) => {
        const first = service.send(HELD);
        await service.state.untilHolding(1);
        const other = ask("other");
        await service.disconnecting(other, () => service.state.untilReceived(2));
        service.state.release();
        (await first).assertRun(201, 1);
        (await service.send(ask("last"))).assertRun(201, 2);
        assert.equal(await service.work.rows("other"), 0);
      }));

    test("request fails when its connection is terminated", () =>
      withService(observer, options, async (service) => {
        const killed = service.send(HELD);
        await service.state.untilHolding(1);
        assert.equal(await service.work.terminate("state = 'idle in transaction'"), 1);
        await service.work.untilQuiet();
        service.state.release();
        (await killed).assertProblem(503, "unavailable");
        await service.work.assertUntouched();
        (await service.send(ask("k"))).assertRun(201, 2);
      }));

    test("handler that ignores a lost connection gets 503", () =>
      withService(observer, options, async (service) => {
        const ignoring = HELD.with("x-end", "SELECT 1|SELECT 1").with("x-ignore-end");
        const killed = service.send(ignoring);
        await service.state.untilHolding(1);
        assert.equal(await service.work.terminate("state = 'idle in transaction'"), 1);
        await service.work.untilQuiet();
        service.state.release();
        (await killed).assertProblem(503, "unavailable");
        await service.work.assertUntouched();
      }));

    test("response without a record survives a lost connection", () =>
      withService(observer, options, async (service) => {
        const killed = service.send(HELD.with("x-status", 503));
        await service.state.untilHolding(1);
        assert.equal(await service.work.terminate("state = 'idle in transaction'"), 1);
        await service.work.untilQuiet();
        service.state.release();
        (await killed).assertRun(503, 1);
      }));

    test("terminated commit gets 503 and a repeated request runs", () =>
      withService(observer, options, async (service) => {
        const { work } = service;
        await work.waitAtCommit();
        await work.locked(async () => {
          const sent = service.send(ask("k"));
          await work.untilWaiting();
          assert.equal(await work.terminate(WAITING), 1);
          (await sent).assertProblem(503, "in-doubt");
        });
        await work.assertUntouched();
        (await service.sendUntilSettled(ask("k"))).assertRun(201, 2);
        assert.deepEqual([await work.rows("k"), await work.claims()], [2, 1]);
      }));

    test("rejected commit gets 500 and leaves nothing", () =>
      withService(observer, options, async (service) => {
        const { table } = service.work.config;
        const unique = `ALTER TABLE ${table} ADD UNIQUE (id) DEFERRABLE INITIALLY DEFERRED`;
        await observer.query(unique);
        (await service.send(ask("k"))).assertProblem(500, "failed");
        await service.work.assertUntouched();
        await observer.query(`ALTER TABLE ${table} DROP CONSTRAINT ${table}_id_key`);
        (await service.send(ask("k"))).assertRun(201, 2);
      }));

    for (const cut of ["before", "after"] as const) {
      test(`reply to the commit that is lost ${cut} it gets 503`, () =>
        withProxy(options, async (service, proxy) => {
          proxy.cutOnce(cut);
          (await service.send(ask("k"))).assertProblem(503, "in-doubt");
          assert.equal(proxy.cuts, 1);
          await service.work.untilQuiet();
          const isCommitted = cut === "after";
          const written = [await service.work.rows("k"), await service.work.claims()];
          assert.deepEqual(written, isCommitted ? [2, 1] : [0, 0]);
          const again = await service.sendUntilSettled(ask("k"));
          assert.deepEqual([again.status, again.isReplayed], [201, isCommitted]);
          assert.deepEqual([await service.work.rows("k"), await service.work.claims()], [2, 1]);
        }));
    }
  });
}

function inEachMode(kind: string, options: Partial<Config>): void {
  describe(kind, { concurrency: 6 }, () => {
    // Express and Fastify have both modes over both drivers.
    if (options.framework !== "hono") {
      test("terminated idle connections fail no request", () =>
        withService(observer, options, async (service) => {
          (await service.send(ask("first"))).assertRun(201, 1);
          await service.work.untilQuiet();
          assert.ok((await service.work.terminate()) > 0);
          await service.work.untilNoSession();
          (await service.send(ask("second"))).assertRun(201, 2);
        }));

      test("unreachable database gets 503 and runs no handler", async () => {
        const listener = createServer().listen(0, "127.0.0.1");
        await once(listener, "listening");
        const { port } = listener.address() as AddressInfo;
        listener.close();
        await withService(observer, { ...options, host: "127.0.0.1", port }, async (service) => {
          (await service.send(ask("k"))).assertProblem(503, "unavailable");
          assert.equal(service.runs, 0);
        });
      });
    }

    // Fastify has no parser before the hooks.
    if (options.framework !== "fastify") {
      test("body that was read before gets 500", () =>
        withService(observer, options, async (service) => {
          (await service.send(ask("k").with("x-parsed"))).assertProblem(500, "failed");
          assert.equal(service.runs, 0);
        }));
    }

    test("client that disconnects in its body runs no handler", () =>
      withService(observer, options, async (service) => {
        const part = ask("k").with("content-length", "7");
        await service.disconnecting(part, () => service.state.untilReceived(1));
        (await service.send(ask("other"))).assertRun(201, 1);
        await service.work.untilQuiet();
        assert.equal(await service.work.rows("k"), 0);
      }));
  });
}

function underLease(driver: Driver): void {
  const options = { framework: "express", driver, mode: "lease" } as const;

  /** Cuts the connection at the COMMIT that completes the lease of a request. */
  async function heldUntilCut(service: Service, proxy: Proxy, cut: Cut) {
    const sent = service.send(HELD.with("x-status", 200));
    await service.state.untilHolding(1);
    await service.work.untilQuiet();
    // The writes of the handler do not pass the proxy.
    proxy.cutOnce(cut);
    service.state.release();
    return sent;
  }

  describe(`lease over ${driver}`, { concurrency: 4 }, () => {
    for (const cut of ["before", "after"] as const) {
      test(`commit of unknown result that is lost ${cut} it is settled`, () =>
        withProxy(options, async (service, proxy) => {
          const first = await heldUntilCut(service, proxy, cut);
          assert.equal(proxy.cuts, 1);
          first.assertRun(200, 1);
          (await service.send(ask("k"))).assertReplayOf(first);
          assert.deepEqual([service.runs, await service.work.claims()], [1, 1]);
        }));

      test(`response that is lost for good ${cut} the commit is in doubt`, () =>
        withProxy(options, async (service, proxy) => {
          proxy.isForGood = true;
          (await heldUntilCut(service, proxy, cut)).assertProblem(503, "in-doubt");
          await service.work.untilQuiet();
          assert.equal(service.runs, 1);
          assert.equal(await service.work.claims(), cut === "after" ? 1 : 0);
        }));
    }
  });
}

// These cases wait more than they work, so those of several services run at once.
describe("failures", { concurrency: 4 }, () => {
  for (const [kind, options] of Object.entries(DRIVERS)) inTransaction(kind, options);
  for (const [kind, options] of Object.entries(KINDS)) inEachMode(kind, options);
  for (const driver of ["pg", "postgres.js"] as const) underLease(driver);
});
