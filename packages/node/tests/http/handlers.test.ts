/** What a handler can do with its transaction. */

import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { execute } from "../pools.js";
import { ask } from "./client.js";
import { DRIVERS } from "./config.js";
import { openDatabase } from "./database.js";
import { withService } from "./service.js";

const observer = await openDatabase();

for (const [kind, options] of Object.entries(DRIVERS)) {
  describe(`transaction of ${kind}`, { concurrency: 3 }, () => {
    test("client error rolls back the writes", () =>
      withService(observer, options, async (service) => {
        const rejected = await service.send(ask("k").with("x-status", 402));
        rejected.assertRun(402, 1);
        assert.deepEqual([await service.work.rows("k"), await service.work.claims()], [0, 1]);
        (await service.send(ask("k"))).assertReplayOf(rejected);
        const kept = ask("kept").with("x-status", 402).with("x-keep-writes");
        (await service.send(kept)).assertRun(402, 2);
        assert.deepEqual([await service.work.rows("kept"), await service.work.claims()], [2, 2]);
      }));

    test("failed statement permits to record errors only", () =>
      withService(observer, options, async (service) => {
        const rejected = await service.send(ask("k").with("x-fail").with("x-status", 422));
        rejected.assertRun(422, 1);
        (await service.send(ask("k"))).assertReplayOf(rejected);
        const pretended = ask("pretended").with("x-fail");
        (await service.send(pretended)).assertProblem(500, "failed");
        assert.equal(service.state.errors.length, 1);
        assert.equal(await service.work.rows("pretended"), 0);
        assert.equal(await service.work.claims(), 1);
        (await service.send(ask("pretended"))).assertRun(201, 3);
      }));

    // The server rejects the first three, so the rollback to the savepoint repairs the transaction.
    const ends = [
      ["COMMIT", true],
      ["COMMIT AND CHAIN", true],
      ["SET LOCAL search_path = pg_catalog", true],
      ["ROLLBACK", false],
      ["ROLLBACK|BEGIN", false],
    ] as const;
    for (const [end, isRepaired] of ends) {
      test(`handler that executes ${end} commits nothing`, () =>
        withService(observer, options, async (service) => {
          const ending = (key: string, status: number) =>
            ask(key).with("x-end", end).with("x-ignore-end").with("x-status", status);
          (await service.send(ending("success", 201))).assertProblem(500, "failed");
          (await service.send(ending("transient", 503))).assertRun(503, 2);
          const rejected = await service.send(ending("rejected", 402));
          if (isRepaired) rejected.assertRun(402, 3);
          else rejected.assertProblem(500, "failed");
          await service.work.untilQuiet();
          assert.equal(await service.work.rows(), 0);
          assert.equal(await service.work.claims(), isRepaired ? 1 : 0);
          for (const [n, key] of ["success", "transient"].entries()) {
            const done = await service.send(ask(key));
            done.assertRun(201, 4 + n);
            assert.equal(await service.work.rows(key), 2);
          }
        }));
    }

    test("COMMIT of the handler is rejected by the server", () =>
      withService(observer, options, async (service) => {
        const ended = await service.send(ask("k").with("x-end", "COMMIT"));
        assert.equal(ended.status, 500);
        await service.work.untilQuiet();
        await service.work.assertUntouched();
      }));

    test("client of a request fails after the response", () =>
      withService(observer, options, async (service) => {
        (await service.send(ask("k"))).assertRun(201, 1);
        await assert.rejects(execute(service.state.clients[0], "SELECT 1"), /has ended/);
      }));

    test("statement that is not awaited is executed before the record", () =>
      withService(observer, options, async (service) => {
        const first = await service.send(ask("k").with("x-unawaited"));
        first.assertRun(201, 1);
        assert.deepEqual([await service.work.rows("k"), await service.work.claims()], [2, 1]);
      }));

    if (kind.startsWith("Hono")) return;
    test("statement that is sent with the response is a part of it", () =>
      withService(observer, options, async (service) => {
        (await service.send(ask("k").with("x-late", "at once"))).assertRun(201, 1);
        assert.deepEqual([await service.work.rows("k"), await service.work.claims()], [3, 1]);
        const failing = ask("failing").with("x-late", "failing");
        const failed = await service.send(failing).catch(() => undefined);
        if (failed !== undefined) failed.assertProblem(500, "failed");
        await service.work.untilQuiet();
        assert.deepEqual([await service.work.rows("failing"), await service.work.claims()], [0, 1]);
      }));

    test("handler that uses its client after the response fails", () =>
      withService(observer, options, async (service) => {
        // Express closes the connection, because the handler fails after its response.
        const late = ask("k").with("x-late", "later");
        const response = await service.send(late).catch(() => undefined);
        if (response !== undefined) response.assertProblem(500, "failed");
        await service.work.untilQuiet();
        await service.work.assertUntouched();
        (await service.send(ask("k"))).assertRun(201, 2);
      }));
  });
}
