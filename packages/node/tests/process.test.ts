/** `process` and `transactions`, which own the transaction. */

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { EventEmitter, once } from "node:events";
import { createServer, type AddressInfo } from "node:net";
import { after, describe, test } from "node:test";

import pg from "pg";

import {
  CommitUnknownError, idem, IdemError, lease, process, transactions,
} from "../src/index.js";
import { asExecutor, execute, POOLS } from "./pools.js";
import { start } from "./programs.js";
import { connectToServer, startProxy } from "./proxy.js";
import { isClaimed, query } from "./server.js";

await query("CREATE TABLE IF NOT EXISTS work (destination text, note text)");

/** A role that cannot execute the functions of idem. */
const stranger = `test_${randomUUID().replaceAll("-", "")}`;
await query(`CREATE ROLE ${stranger}`);
after(() => query(`DROP ROLE ${stranger}`));

const WORK = "INSERT INTO work VALUES ($1, $2)";

async function written(destination: string, note: string): Promise<unknown> {
  const [[count] = []] = await query(
    "SELECT count(*)::int FROM work WHERE destination = $1 AND note = $2",
    [destination, note],
  );
  return count;
}

test("client of a handler cannot be released", async (t) => {
  const pool = new pg.Pool({ max: 1 });
  t.after(() => pool.end());
  const destination = `process-release-${randomUUID()}`;
  const failed = process(pool, { id: "m-1", destination }, (client) => {
    (client as pg.PoolClient).release();
    return Promise.resolve();
  });
  await assert.rejects(failed, { name: "IdemError", message: /^release\(\)/ });
  assert.equal(await isClaimed("m-1", destination), false);
  assert.equal(pool.idleCount, 1);
});

test("transaction of its own needs no privilege of a consumer", async () => {
  const role = `test_${randomUUID().replaceAll("-", "")}`;
  await query(`CREATE ROLE ${role} LOGIN`);
  const pool = new pg.Pool({ max: 1, user: role });
  const rows = await transactions(pool)((client) => execute(client, "SELECT current_user AS u"));
  assert.deepEqual(rows, [{ u: role }]);
  await pool.end();
  await query(`DROP ROLE ${role}`);
});

/** FATAL 57P01, as the server sends it. */
function terminated(): Buffer {
  const fields = ["SFATAL", "VFATAL", "C57P01", "Mterminating connection", ""];
  const body = Buffer.from(fields.map((field) => `${field}\0`).join(""));
  const head = Buffer.from("E\0\0\0\0");
  head.writeInt32BE(body.length + 4, 1);
  return Buffer.concat([head, body]);
}

/** Starts a proxy that sends an error together with the readiness of the server. */
async function startTerminatingProxy() {
  const server = createServer((client) => {
    const upstream = connectToServer();
    client.on("error", () => undefined).on("close", () => upstream.destroy());
    client.on("data", (data) => upstream.write(data));
    upstream.on("error", () => undefined);
    upstream.on("data", (data) => {
      // ReadyForQuery outside of a transaction.
      if (data.subarray(-6).equals(Buffer.from("Z\0\0\0\x05I"))) {
        client.end(Buffer.concat([data, terminated()]));
      } else {
        client.write(data);
      }
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return server;
}

test("connection that is terminated when it is ready is an error", async (t) => {
  const server = await startTerminatingProxy();
  t.after(() => server.close());
  const { port } = server.address() as AddressInfo;
  const pool = new pg.Pool({ host: "127.0.0.1", port });
  t.after(() => pool.end());
  pool.on("error", () => undefined);
  const failed = transactions(pool)(() => Promise.resolve());
  await assert.rejects(failed, { name: "IdemError", retryable: true });
});

for (const [name, open] of Object.entries(POOLS)) {
  describe(`process with ${name}`, { concurrency: false }, () => {
    const { pool, close } = open();
    const destination = `process-${name}-${randomUUID()}`;

    test("message is processed once", async () => {
      const id = "m-1 $1 '\\";
      const handler = async (client: unknown) => {
        await execute(client, WORK, [destination, "once"]);
        return [{ topic: "receipts", payload: { a: 1 } }];
      };
      const fingerprint = Buffer.from([0, 1, 2]);
      const first = await process(pool, { id, destination, fingerprint }, handler);
      assert.ok(first.outcome === "processed");
      const rows = await query("SELECT message_id::text FROM idem_effects($1, $2)", [
        id,
        destination,
      ]);
      assert.deepEqual(rows, [first.messageIds]);
      const second = await process(pool, { id, destination, fingerprint }, handler);
      assert.ok(second.outcome === "duplicate");
      assert.ok(second.handledAt instanceof Date);
      const another = { id, destination, fingerprint: Buffer.from([3]) };
      const other = await process(pool, another, handler);
      assert.equal(other.outcome, "mismatch");
      const settlements = [first, second, other].map(({ settlement }) => settlement);
      assert.deepEqual(settlements, ["acknowledge", "acknowledge", "reject"]);
      assert.equal(await written(destination, "once"), 1);
    });

    test("message of the inbox is processed and leased as it is", async () => {
      const inbox = `${destination}-inbox`;
      const received = await transactions(pool)(async (client) => {
        const on = idem(asExecutor(client));
        await on.inbox.receive({ id: "i-1", destination: inbox, payload: 1 });
        return on.inbox.next(inbox);
      });
      const [message] = received;
      assert.ok(message !== undefined);
      const { outcome } = await lease(pool, message);
      assert.equal(outcome, "in_progress");
      await transactions(pool)((client) => idem(asExecutor(client)).release(message));
      const processed = await process(pool, message, () => Promise.resolve());
      assert.equal(processed.outcome, "processed");
    });

    test("concurrent duplicates are processed once", async () => {
      const message = { id: "m-2", destination };
      const outcomes = await Promise.all(
        Array.from({ length: 8 }, () =>
          process(pool, message, async (client) => {
            await execute(client, WORK, [destination, "concurrent"]);
          }),
        ),
      );
      const processed = outcomes.filter(({ outcome }) => outcome === "processed");
      assert.equal(processed.length, 1);
      assert.equal(await written(destination, "concurrent"), 1);
    });

    test("error of the handler rolls back", async () => {
      const failure = new Error("the work failed");
      const failed = process(pool, { id: "m-3", destination }, async (client) => {
        await execute(client, WORK, [destination, "failed"]);
        throw failure;
      });
      await assert.rejects(failed, (error) => error === failure);
      assert.equal(await isClaimed("m-3", destination), false);
      assert.equal(await written(destination, "failed"), 0);
    });

    test("error that the handler ignores rolls back", async () => {
      const failed = process(pool, { id: "m-4", destination }, async (client) => {
        await execute(client, "SELECT 1/0").catch(() => undefined);
      });
      await assert.rejects(failed, (error) => {
        assert.ok(error instanceof IdemError && !(error instanceof CommitUnknownError));
        assert.match(error.message, /division by zero/);
        return true;
      });
      assert.equal(await isClaimed("m-4", destination), false);
    });

    test("effect that is rejected rolls back", async () => {
      const failed = process(pool, { id: "m-12", destination }, async (client) => {
        await execute(client, WORK, [destination, "rejected"]);
        return { topic: "", payload: 1 };
      });
      await assert.rejects(failed, { name: "IdemError", sqlstate: "22023" });
      assert.equal(await isClaimed("m-12", destination), false);
      assert.equal(await written(destination, "rejected"), 0);
    });

    test("handler cannot commit", async () => {
      const failed = process(pool, { id: "m-5", destination }, async (client) => {
        await execute(client, "COMMIT");
      });
      await assert.rejects(failed, { code: "2D000" });
      assert.equal(await isClaimed("m-5", destination), false);
    });

    test("handler that rolls back does not commit", async () => {
      const failed = process(pool, { id: "m-6", destination }, async (client) => {
        await execute(client, "ROLLBACK");
      });
      await assert.rejects(failed, { name: "IdemError", sqlstate: "25P01" });
      assert.equal(await isClaimed("m-6", destination), false);
    });

    const breaks = {
      "COMMIT": "COMMIT",
      "ROLLBACK": "ROLLBACK",
      "ROLLBACK and BEGIN": "ROLLBACK; BEGIN",
      "a statement that fails": "SELECT 1/0",
      "SET ROLE": `SET LOCAL ROLE ${stranger}`,
    };
    for (const [what, statement] of Object.entries(breaks)) {
      test(`handler that ignores ${what} commits nothing`, async () => {
        for (const effects of [[], [{ topic: "receipts", payload: 1 }]]) {
          const failed = process(pool, { id: "m-16", destination }, async (client) => {
            await execute(client, WORK, [destination, what]);
            await execute(client, statement).catch(() => undefined);
            return effects;
          });
          await assert.rejects(failed, { name: "IdemError" });
          assert.equal(await isClaimed("m-16", destination), false);
          assert.equal(await written(destination, what), 0);
        }
      });
    }

    test("handler that rolls back records no effect", async () => {
      for (const statement of ["ROLLBACK", "ROLLBACK AND CHAIN", "SELECT 1; ROLLBACK"]) {
        const failed = process(pool, { id: "m-13", destination }, async (client) => {
          await execute(client, statement);
          return { topic: "receipts", payload: 1 };
        });
        await assert.rejects(failed, { name: "IdemError" });
        assert.equal(await isClaimed("m-13", destination), false);
      }
      const after = await process(pool, { id: "m-13", destination }, () => Promise.resolve());
      assert.equal(after.outcome, "processed");
    });

    test("branch that goes on after the end writes nothing", async () => {
      const single = open({ max: 1 });
      const events = new EventEmitter();
      const failure = new Error("the other branch failed");
      const failed = process(single.pool, { id: "m-14", destination }, async (client) => {
        const late = async () => {
          await once(events, "send");
          await Promise.resolve()
            .then(() => execute(client, WORK, [destination, "late"]))
            .catch((error: unknown) => events.emit("failed", error));
        };
        await Promise.all([late(), Promise.reject(failure)]);
      });
      await assert.rejects(failed, failure);
      // The only connection of the pool is in the transaction of another message.
      await process(single.pool, { id: "m-15", destination }, async (client) => {
        const ended = once(events, "failed") as Promise<unknown[]>;
        events.emit("send");
        const [error] = await ended;
        assert.match(String(error), /the transaction has ended/);
        await execute(client, WORK, [destination, "other"]);
      });
      assert.equal(await written(destination, "late"), 0);
      assert.equal(await written(destination, "other"), 1);
      await single.close();
    });

    test("killed process commits nothing", async () => {
      const program = await start("work", name, "m-7", destination);
      assert.equal(program.line, "written");
      const blocked = await process(pool, { id: "m-7", destination, wait: false }, async () => {
        await Promise.reject(new Error("the handler was executed"));
      });
      assert.deepEqual(blocked, {
        outcome: "in_progress",
        settlement: "redeliver",
        retryAfterMs: null,
      });
      await program.kill();
      const after = await process(pool, { id: "m-7", destination }, async (client) => {
        await execute(client, WORK, [destination, "after"]);
      });
      assert.equal(after.outcome, "processed");
      assert.deepEqual(
        [await written(destination, "killed"), await written(destination, "after")],
        [0, 1],
      );
    });

    test("lost reply to COMMIT is an error of its own", async (t) => {
      const proxy = await startProxy();
      const through = open(proxy.settings);
      t.after(async () => {
        await through.close();
        await proxy.close();
      });
      const message = { id: "m-8", destination };
      const handler = async (client: unknown) => {
        await execute(client, WORK, [destination, "lost"]);
      };
      proxy.loseNextCommit();
      await assert.rejects(process(through.pool, message, handler), (error) => {
        assert.ok(error instanceof CommitUnknownError, String(error));
        assert.equal(error.retryable, true);
        assert.ok(error.cause instanceof Error);
        assert.match(error.message, /^the reply to COMMIT is missing/);
        return true;
      });
      assert.equal(proxy.lost(), 1);
      const again = await process(through.pool, message, handler);
      assert.ok(again.outcome === "duplicate");
      assert.ok(again.handledAt instanceof Date);
      assert.equal(await written(destination, "lost"), 1);
    });

    test("conflicts are retried only when requested", async () => {
      const raise = (state: string) => `DO $$ BEGIN RAISE 'no' USING ERRCODE = '${state}'; END $$`;
      let attempts = 0;
      const failing = (state: string, failures: number) => async (client: unknown) => {
        attempts += 1;
        if (attempts <= failures) await execute(client, raise(state));
        await execute(client, WORK, [destination, state]);
      };
      const run = (id: string, state: string, failures: number, retries?: number) => {
        attempts = 0;
        return process(pool, { id, destination }, failing(state, failures), { retries });
      };
      assert.equal((await run("r-1", "40001", 2, 2)).outcome, "processed");
      assert.equal(attempts, 3);
      assert.equal(await written(destination, "40001"), 1);
      assert.equal((await run("r-2", "40P01", 1, 1)).outcome, "processed");
      await assert.rejects(run("r-3", "40001", 2, 1), { code: "40001" });
      assert.equal(attempts, 2);
      await assert.rejects(run("r-4", "40001", 1), { code: "40001" });
      assert.equal(attempts, 1);
      await assert.rejects(run("r-5", "23505", 1, 5), { code: "23505" });
      assert.equal(attempts, 1);
    });

    test("transaction of its own is repeated only when requested", async () => {
      let attempts = 0;
      const conflict = "DO $$ BEGIN RAISE 'no' USING ERRCODE = '40001'; END $$";
      const run = (failures: number, retries?: number) => {
        attempts = 0;
        const work = async (client: unknown) => {
          attempts += 1;
          // An error that the work ignores is a conflict too.
          if (attempts <= failures) await execute(client, conflict).catch(() => undefined);
          return attempts;
        };
        return transactions(pool)(work, { retries });
      };
      assert.equal(await run(2, 2), 3);
      await assert.rejects(run(1), IdemError);
      assert.equal(attempts, 1);
    });

    test("transaction is repeated after the loss of its connection", async () => {
      let attempts = 0;
      const losing = async (client: unknown) => {
        attempts += 1;
        await execute(client, WORK, [destination, "reconnected"]);
        if (attempts > 1) return;
        const [row] = await execute(client, "SELECT pg_backend_pid() AS pid");
        await query("SELECT pg_terminate_backend($1, 20000)", [(row as { pid: number }).pid]);
        await execute(client, "SELECT 1");
      };
      const { outcome } = await process(pool, { id: "r-6", destination }, losing, { retries: 3 });
      assert.equal(outcome, "processed");
      assert.equal(await written(destination, "reconnected"), 1);
      attempts = 0;
      await transactions(pool)(losing, { retries: 3 });
      assert.equal(await written(destination, "reconnected"), 2);
      // The connection of another system.
      const reset = Object.assign(new Error("reset"), { code: "ECONNRESET" });
      let made = 0;
      const other = () => {
        made += 1;
        return Promise.reject(reset);
      };
      const failed = process(pool, { id: "r-7", destination }, other, { retries: 3 });
      await assert.rejects(failed, reset);
      assert.equal(made, 1);
    });

    test("aborted signal rolls back", async () => {
      const controller = new AbortController();
      const { signal } = controller;
      const options = { signal };
      const failed = process(
        pool,
        { id: "m-9", destination },
        async (client) => {
          await execute(client, WORK, [destination, "aborted"]);
          controller.abort(new Error("shutdown"));
        },
        options,
      );
      await assert.rejects(failed, { message: "shutdown" });
      assert.equal(await isClaimed("m-9", destination), false);
      await assert.rejects(
        process(pool, { id: "m-9", destination }, () => Promise.resolve(), options),
        { message: "shutdown" },
      );
    });

    test("lost connection of a handler is an error", async () => {
      const failed = process(pool, { id: "m-10", destination }, async (client) => {
        const [row] = await execute(client, "SELECT pg_backend_pid() AS pid");
        const { pid } = row as { pid: number };
        await query("SELECT pg_terminate_backend($1, 20000)", [pid]);
        await execute(client, "SELECT 1");
      });
      await assert.rejects(failed, (error) => {
        assert.match(String(error), /terminat|not queryable|CONNECTION_CLOSED/);
        return !(error instanceof CommitUnknownError);
      });
      assert.equal(await isClaimed("m-10", destination), false);
      const again = await process(pool, { id: "m-10", destination }, () => Promise.resolve());
      assert.equal(again.outcome, "processed");
    });

    test("error of a lost connection is that of the statement", async () => {
      const failed = process(pool, { id: "m-11", destination }, async (client) => {
        await execute(client, "SELECT pg_terminate_backend(pg_backend_pid())");
      });
      await assert.rejects(failed, name === "pg" ? { code: "57P01" } : { name: "IdemError" });
    });

    test("transaction of its own commits or rolls back", async () => {
      const run = transactions(pool);
      const claimed = await run((client) => idem(asExecutor(client)).tryClaim("t-1", destination));
      assert.equal(claimed, true);
      assert.equal(await isClaimed("t-1", destination), true);
      const failure = new Error("no");
      await assert.rejects(
        run(async (client) => {
          await idem(asExecutor(client)).tryClaim("t-2", destination);
          throw failure;
        }),
        failure,
      );
      assert.equal(await isClaimed("t-2", destination), false);
      const ignored = run((client) => execute(client, "SELECT 1/0").catch(() => undefined));
      await assert.rejects(ignored, { name: "IdemError", message: /division by zero/ });
      const level = await run((client) => execute(client, "SHOW transaction_isolation"), {
        isolation: "serializable",
      });
      assert.deepEqual(Object.values(level[0] as object), ["serializable"]);
    });

    test("transaction of its own that has ended is an error", async () => {
      const run = transactions(pool);
      const ends = ["ROLLBACK", "COMMIT", "ROLLBACK; BEGIN", "COMMIT AND CHAIN"];
      for (const [n, statement] of ends.entries()) {
        const ended = run(async (client) => {
          await idem(asExecutor(client)).tryClaim(`t-3-${String(n)}`, destination);
          await execute(client, statement);
        });
        await assert.rejects(ended, { name: "IdemError", sqlstate: "25P01" }, statement);
      }
      assert.equal(await isClaimed("t-3-0", destination), false);
      assert.equal(await run(() => Promise.resolve("still works")), "still works");
    });

    test("failed statement that is not awaited is an error", async () => {
      const failed = transactions(pool)(async (client) => {
        await idem(asExecutor(client)).tryClaim("t-4", destination);
        execute(client, "SELECT 1/0").catch(() => undefined);
      });
      await assert.rejects(failed, IdemError);
      assert.equal(await isClaimed("t-4", destination), false);
    });

    test("savepoint of the work does not end its transaction", async () => {
      await transactions(pool)(async (client) => {
        await execute(client, "SAVEPOINT a");
        await execute(client, WORK, [destination, "undone"]);
        await execute(client, "ROLLBACK TO SAVEPOINT a");
        await execute(client, WORK, [destination, "kept"]);
      });
      assert.equal(await written(destination, "undone"), 0);
      assert.equal(await written(destination, "kept"), 1);
    });

    test("close", close);
  });
}
