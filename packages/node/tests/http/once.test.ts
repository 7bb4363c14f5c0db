/** Requests with a key take effect once, and which responses are recorded. */

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { describe, test } from "node:test";

import { ask } from "./client.js";
import { KINDS, type Config } from "./config.js";
import { openDatabase } from "./database.js";
import { withService, withServiceOn, type Service } from "./service.js";

const observer = await openDatabase();

const SERVICES: typeof KINDS = { ...KINDS, "Express 4": { framework: "express 4" } };

for (const [kind, options] of Object.entries(SERVICES)) {
  const isLeased = options.mode === "lease";
  const on = (more: Partial<Config>, work: (service: Service) => Promise<void>) =>
    withService(observer, { ...options, ...more }, work);

  describe(kind, { concurrency: 3 }, () => {
    test("repeated request gets the recorded response", () =>
      on({}, async (service) => {
        const key = randomUUID();
        const first = await service.send(ask(key));
        first.assertRun(201, 1);
        for (let n = 0; n < 3; n += 1) (await service.send(ask(key))).assertReplayOf(first);
        assert.equal(service.runs, 1);
        assert.deepEqual([await service.work.rows(key), await service.work.claims()], [2, 1]);
        (await service.send(ask("another"))).assertRun(201, 2);
      }));

    test("concurrent request with the key gets 409 and Retry-After", () =>
      on({}, async (service) => {
        const first = service.send(ask("held").with("x-hold"));
        await service.state.untilHolding(1);
        const second = await service.send(ask("held"));
        second.assertProblem(409, "in-progress");
        assert.equal(second.header("retry-after"), "1");
        service.state.release();
        (await first).assertRun(201, 1);
        (await service.send(ask("held"))).assertReplayOf(await first);
        assert.deepEqual([service.runs, await service.work.rows("held")], [1, 2]);
      }));

    test("concurrent requests run one handler", () =>
      on({}, async (service) => {
        for (let number = 1; number <= 3; number += 1) {
          const key = `race-${String(number)}`;
          const sent = Array.from({ length: 6 }, () => service.send(ask(key)));
          const responses = await Promise.all(sent);
          const fresh = responses.filter(({ status, isReplayed }) => status === 201 && !isReplayed);
          assert.equal(fresh.length, 1);
          const [first] = fresh;
          assert.ok(first);
          first.assertRun(201, number);
          for (const response of responses) {
            if (response.status !== 201) response.assertProblem(409, "in-progress");
            else if (response !== first) response.assertReplayOf(first);
          }
          assert.deepEqual([await service.work.rows(key), service.runs], [2, number]);
        }
      }));

    test("other request with the same key gets 422", () =>
      on({}, async (service) => {
        (await service.send(ask("k"))).assertRun(201, 1);
        const others = [
          ask("k").to({ body: "another body" }),
          ask("k").to({ path: "/others" }),
          ask("k").to({ path: "/orders?dry=1" }),
          ask("k").to({ method: "PATCH" }),
        ];
        for (const other of others) (await service.send(other)).assertProblem(422, "mismatch");
        assert.deepEqual([service.runs, await service.work.claims()], [1, 1]);
      }));

    test("other service replays the recorded response", () =>
      on({ driver: "pg" }, async (service) => {
        const first = await service.send(ask("restart"));
        const config = { ...service.work.config, driver: "postgres.js" } as const;
        await withServiceOn(service.work, config, async (second) => {
          (await second.send(ask("restart"))).assertReplayOf(first);
          assert.equal(second.runs, 0);
        });
      }));

    test("each caller has its own keys", () =>
      on({ byTenant: true }, async (service) => {
        const first = await service.send(ask("k").with("x-tenant", "a"));
        first.assertRun(201, 1);
        (await service.send(ask("k").with("x-tenant", "b"))).assertRun(201, 2);
        (await service.send(ask("k").with("x-tenant", "a"))).assertReplayOf(first);
        // "a" with "b:k" and "a:b" with "k" are different.
        (await service.send(ask("b:k").with("x-tenant", "a"))).assertRun(201, 3);
        (await service.send(ask("k").with("x-tenant", "a:b"))).assertRun(201, 4);
        (await service.send(ask("k"))).assertProblem(403, "unknown-caller");
        (await service.send(ask("k").with("x-tenant", ""))).assertProblem(403, "unknown-caller");
        const long = ask("x".repeat(255)).with("x-tenant", "t".repeat(800));
        (await service.send(long)).assertProblem(400, "key-too-long");
        const ids = await service.work.value(
          "SELECT array_agg(id ORDER BY id) FROM idem.inbox WHERE destination = $1",
          [service.work.config.destination],
        );
        assert.deepEqual(ids, ["by:1:a:b:k", "by:1:a:k", "by:1:b:k", "by:3:a:b:k"]);
        assert.equal(service.runs, 4);
        // A service without tenants never replays a response of a tenant.
        const shared = { ...service.work.config, byTenant: false };
        await withServiceOn(service.work, shared, async (second) => {
          (await second.send(ask("1:a:k").to({ body: "k" }))).assertRun(201, 1);
        });
      }));

    test("key claimed without a response gets 409", () =>
      on({}, async (service) => {
        const { destination } = service.work.config;
        const client = await observer.connect();
        await client.query("BEGIN");
        await client.query("SELECT idem_try_claim('all:k', $1)", [destination]);
        await client.query("COMMIT");
        client.release();
        (await service.send(ask("k"))).assertProblem(409, "not-recorded");
        assert.equal(service.runs, 0);
      }));

    test("missing or invalid key gets 400", () =>
      on({}, async (service) => {
        (await service.send(ask("k").withoutKey())).assertProblem(400, "missing-key");
        for (const bad of ["", '""', '"open', "two words", '"a" "b"', "x".repeat(256)]) {
          const request = ask("k").withoutKey().with("idempotency-key", bad);
          (await service.send(request)).assertProblem(400, "bad-key");
        }
        const twice = ask("k").with("idempotency-key", '"k"');
        (await service.send(twice)).assertProblem(400, "bad-key");
        assert.equal(service.runs, 0);
        await service.work.assertUntouched();
        const first = await service.send(ask("k"));
        const bare = ask("k").withoutKey().with("idempotency-key", "k");
        (await service.send(bare)).assertReplayOf(first);
      }));

    test("request without an optional key passes through", () =>
      on({ required: false }, async (service) => {
        for (const run of [1, 2]) (await service.send(ask("k").withoutKey())).assertRun(201, run);
        assert.deepEqual([await service.work.claims(), await service.work.rows("k")], [0, 4]);
        const first = await service.send(ask("k"));
        first.assertRun(201, 3);
        (await service.send(ask("k"))).assertReplayOf(first);
      }));

    test("only the methods of the options are protected", () =>
      on({ methods: ["PUT"] }, async (service) => {
        for (const [n, method] of ["POST", "PATCH", "DELETE", "GET"].entries()) {
          (await service.send(ask("").to({ method }))).assertRun(201, n + 1);
        }
        assert.equal(await service.work.claims(), 0);
        const first = await service.send(ask("k").to({ method: "PUT" }));
        first.assertRun(201, 5);
        (await service.send(ask("k").to({ method: "PUT" }))).assertReplayOf(first);
      }));

    test("request above the limit gets 413", () =>
      on({ requestLimit: 100 }, async (service) => {
        const large = ask("k").to({ body: "x".repeat(101) });
        (await service.send(large)).assertProblem(413, "request-too-large");
        const pieces = (count: number) => Array<string>(count).fill("ten bytes.");
        (await service.send(ask("k"), pieces(20))).assertProblem(413, "request-too-large");
        assert.equal(service.runs, 0);
        await service.work.assertUntouched();
        (await service.send(ask("k").to({ body: "x".repeat(100) }))).assertRun(201, 1);
        (await service.send(ask("pieces"), pieces(10))).assertRun(201, 2);
        assert.equal(await service.work.rows("ten bytes.".repeat(10)), 2);
        (await service.send(ask("empty").to({ body: "" }))).assertRun(201, 3);
        (await service.send(ask("empty, in pieces"), [])).assertRun(201, 4);
        assert.equal(await service.work.rows(""), 4);
      }));

    for (const how of ["at once", "as a stream"]) {
      test(`response above the limit that is sent ${how} gets 500`, () =>
        on({ responseLimit: 1000 }, async (service) => {
          const request = how === "at once" ? ask("k") : ask("k").with("x-stream");
          const large = await service.send(request.with("x-size", 1000));
          large.assertProblem(500, "response-too-large");
          assert.equal(await service.work.claims(), 0);
          if (!isLeased) await service.work.assertUntouched();
          const first = await service.send(request.with("x-size", 900));
          first.assertRun(201, 2);
          assert.equal(first.body, `run 2, k${"x".repeat(900)}`);
          (await service.send(request)).assertReplayOf(first);
          // The size of a response that is not recorded is not limited.
          const failed = ask("failed").with("x-size", 5000).with("x-status", 503);
          const response = await service.send(failed);
          response.assertRun(503, 3);
          assert.ok(response.body.length > 5000);
        }));
    }

    test("transient failure is not recorded and runs again", () =>
      on({}, async (service) => {
        let runs = 0;
        for (const status of [500, 502, 503, 504, 409, 429]) {
          runs += 1;
          (await service.send(ask("k").with("x-status", status))).assertRun(status, runs);
          assert.equal(await service.work.claims(), 0);
        }
        if (!isLeased) await service.work.assertUntouched();
        const done = await service.send(ask("k"));
        done.assertRun(201, runs + 1);
        (await service.send(ask("k").with("x-status", 500))).assertReplayOf(done);
      }));

    test("success, redirection and client error are recorded", () =>
      on({}, async (service) => {
        const statuses = [200, 201, 202, 204, 303, 308, 400, 402, 404, 422];
        for (const [n, status] of statuses.entries()) {
          const key = `status-${String(status)}`;
          const first = await service.send(ask(key).with("x-status", status));
          first.assertRun(status, n + 1);
          (await service.send(ask(key))).assertReplayOf(first);
        }
        assert.equal(await service.work.claims(), statuses.length);
      }));

    test("options select the recorded headers", () =>
      on(
        { keptHeaders: ["x-run", "connection", "set-cookie", "date"] },
        async (service) => {
          const first = await service.send(ask("k"));
          const again = await service.send(ask("k"));
          again.assertReplayOf(first);
          assert.equal(again.header("x-other"), undefined);
          // The server of Hono sends a default.
          if (!kind.startsWith("Hono")) assert.equal(again.header("content-type"), undefined);
          assert.deepEqual(again.values("set-cookie"), ["session=secret"]);
          const recorded = await service.work.recorded();
          for (const name of ['"date"', '"connection"']) assert.ok(!recorded.includes(name));
        },
      ));

    test("headers of cookies and other middleware are not recorded", () =>
      on({}, async (service) => {
        const first = await service.send(ask("k").with("x-outer", "first").with("x-with-hop"));
        assert.deepEqual(first.values("set-cookie"), ["session=secret"]);
        assert.deepEqual([first.header("x-outer"), first.header("x-hop")], ["first", "1"]);
        const again = await service.send(ask("k").with("x-outer", "second"));
        again.assertReplayOf(first);
        assert.deepEqual([again.header("x-outer"), again.header("x-other")], ["second", "kept"]);
        assert.equal(again.header("content-type"), first.header("content-type"));
        assert.deepEqual([again.values("set-cookie"), again.header("x-hop")], [[], undefined]);
        assert.equal(again.header("content-length"), String(again.bytes.length));
        const recorded = await service.work.recorded();
        assert.ok(recorded.includes("x-other"));
        for (const name of ["secret", '"date"', "x-hop", '"connection"', "-length", "x-outer"]) {
          assert.ok(!recorded.includes(name), name);
        }
        const problem = await service.send(ask("k").to({ body: "other" }).with("x-outer", "third"));
        assert.deepEqual([problem.status, problem.header("x-outer")], [422, "third"]);
      }));

    test("error of the handler leaves no effect", () =>
      on({}, async (service) => {
        const raised = await service.send(ask("k").with("x-raise"));
        assert.deepEqual([raised.status, raised.header("x-run")], [500, undefined]);
        await service.work.untilQuiet();
        assert.equal(await service.work.claims(), 0);
        if (!isLeased) await service.work.assertUntouched();
        // At once: the attempt does not count, so the request does not wait for a retry.
        (await service.send(ask("k"))).assertRun(201, 2);
      }));

    test("stream that breaks leaves no effect", () =>
      on({}, async (service) => {
        const broken = ask("k").with("x-stream", "broken");
        const response = await service.send(broken).catch(() => undefined);
        if (response !== undefined) response.assertProblem(500, "failed");
        await service.work.untilQuiet();
        assert.equal(await service.work.claims(), 0);
        if (!isLeased) await service.work.assertUntouched();
      }));
  });
}
