/** Poolers that remove comments, and poolers that do not keep prepared statements. */

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { describe, test, type TestContext } from "node:test";

import pg from "pg";

import { idem, process as processMessage, type Effects } from "../src/index.js";
import { startPgBouncer } from "./pgbouncer.js";
import type { Settings } from "./pools.js";
import { startProxy } from "./proxy.js";
import { isClaimed, query } from "./server.js";

const destination = `poolers-${randomUUID()}`;
const role = `test_${randomUUID().replaceAll("-", "")}`;

test("message whose COMMIT lost its mark is processed once", async (t) => {
  const proxy = await startProxy();
  const pool = new pg.Pool({ max: 1, ...proxy.settings });
  t.after(async () => {
    await pool.end();
    await proxy.close();
  });
  proxy.remove("/* idem */");
  await pool.query("CREATE TEMP TABLE work (id text)");
  let runs = 0;
  const run = (id: string) =>
    processMessage(pool, { id, destination }, async (client) => {
      runs += 1;
      await client.query("INSERT INTO work VALUES ($1)", [id]);
    });
  const warned = once(process, "warning");
  assert.equal((await run("p-1")).outcome, "processed");
  assert.equal(runs, 2);
  const [warning] = (await warned) as [Error];
  assert.match(warning.message, /removes comments/);
  assert.equal((await run("p-2")).outcome, "processed");
  assert.equal(runs, 3);
  const { rows } = await pool.query("SELECT id FROM work ORDER BY id");
  assert.deepEqual(rows, [{ id: "p-1" }, { id: "p-2" }]);
  assert.equal(await isClaimed("p-1", destination), true);
});

/** Opens a pool of one connection. */
function open(t: TestContext, settings: Settings = {}): pg.Pool {
  const pool = new pg.Pool({ max: 1, ...settings });
  // PgBouncer ends before the pool does.
  pool.on("error", () => undefined);
  t.after(() => pool.end());
  return pool;
}

const effect = { topic: "receipts", payload: 1 };
const PREPARED = `SELECT count(*)::int AS n FROM pg_prepared_statements
  WHERE name ~ '^idem_[0-9a-f]{32}$' AND statement LIKE '%' || $1 || '%'`;

/** Returns the number of prepared statements that call a function. */
async function prepared(client: pg.Pool | pg.PoolClient, name: string): Promise<unknown> {
  const { rows } = await client.query<{ n: number }>(PREPARED, [name]);
  return rows[0]?.n;
}

test("statements of messages and of functions are prepared", async (t) => {
  const pool = open(t);
  for (const id of ["d-1", "d-2"]) {
    const { outcome } = await processMessage(pool, { id, destination }, async (client) => {
      await idem(client).send(effect);
      return effect;
    });
    assert.equal(outcome, "processed");
  }
  for (const name of ["idem_try_claim", "idem_record_effects", "idem_send"]) {
    assert.equal(await prepared(pool, name), 1, name);
  }
});

test("pipeline mode of node-postgres prepares the functions only", async (t) => {
  const pool = open(t, { pipeline: true } as Settings);
  const message = { id: "d-3", destination };
  const { outcome } = await processMessage(pool, message, async (client) => {
    await idem(client).send(effect);
    return effect;
  });
  assert.equal(outcome, "processed");
  assert.deepEqual([await prepared(pool, "try_claim"), await prepared(pool, "idem_send")], [0, 1]);
});

test("failed statement is parsed again", async (t) => {
  const pool = open(t);
  const wrong = processMessage(pool, { id: "", destination }, () => Promise.resolve());
  await assert.rejects(wrong, { sqlstate: "22023" });
  await query(`CREATE ROLE ${role}`);
  t.after(() => query(`DROP ROLE ${role}`));
  const failed = processMessage(pool, { id: "d-4", destination }, async (client) => {
    await client.query(`SET LOCAL ROLE ${role}`);
    return effect;
  });
  await assert.rejects(failed, { sqlstate: "42501" });
  for (const id of ["d-4", "d-5"]) {
    const done = await processMessage(pool, { id, destination }, () => Promise.resolve(effect));
    assert.equal(done.outcome, "processed");
  }
});

describe("behind PgBouncer", { concurrency: false }, () => {
  /** Processes a message whose handler must be executed once. */
  async function runOnce(pool: pg.Pool, id: string, effects: Effects = []): Promise<void> {
    let runs = 0;
    const { outcome } = await processMessage(pool, { id, destination }, () => {
      runs += 1;
      return Promise.resolve(effects);
    });
    assert.deepEqual([outcome, runs, await isClaimed(id, destination)], ["processed", 1, true]);
  }

  /** Holds the only free connection to the server. */
  async function hold(pool: pg.Pool): Promise<pg.PoolClient> {
    const client = await pool.connect();
    await client.query("BEGIN");
    return client;
  }

  async function warned(work: () => Promise<void>): Promise<void> {
    const warning = once(process, "warning") as Promise<[Error]>;
    await work();
    assert.match((await warning)[0].message, /max_prepared_statements/);
  }

  test("message is repeated if its statement exists already", async (t) => {
    const settings = await startPgBouncer(t);
    const [first, second] = [open(t, settings), open(t, settings)];
    await runOnce(first, "b-1");
    await warned(() => runOnce(second, "b-2"));
    await Promise.all([runOnce(first, "b-3", effect), runOnce(second, "b-4", effect)]);
    const held = await hold(second);
    assert.equal(await prepared(held, "record_effects"), 0);
    assert.equal(await prepared(first, "record_effects"), 0);
    held.release();
  });

  test("message is repeated if its statement does not exist", async (t) => {
    const settings = await startPgBouncer(t);
    const [first, second] = [open(t, settings), open(t, settings)];
    await runOnce(first, "b-5");
    const held = await hold(second);
    await warned(() => runOnce(first, "b-6"));
    await runOnce(first, "b-7", effect);
    await held.query("ROLLBACK");
    held.release();
  });

  test("statement that is lost in a transaction is a retryable error", async (t) => {
    const settings = await startPgBouncer(t);
    const [first, second, third] = [open(t, settings), open(t, settings), open(t, settings)];
    await runOnce(first, "b-8", effect);
    const held = await hold(second);
    await runOnce(third, "b-9");
    await warned(async () => {
      const lost = { name: "IdemError", sqlstate: "26000", retryable: true };
      await assert.rejects(runOnce(first, "b-10", effect), lost);
    });
    assert.equal(await isClaimed("b-10", destination), false);
    await runOnce(first, "b-10", effect);
    await held.query("ROLLBACK");
    held.release();
  });

  test("function that is lost in a transaction is a retryable error", async (t) => {
    const settings = await startPgBouncer(t);
    const [first, second] = [open(t, settings), open(t, settings)];
    const on = await first.connect();
    assert.equal(await idem(on).isClaimed("b-11", destination), false);
    const held = await hold(second);
    await on.query("BEGIN");
    const lost = { name: "IdemError", sqlstate: "26000", retryable: true };
    await assert.rejects(idem(on).isClaimed("b-11", destination), lost);
    await on.query("ROLLBACK");
    assert.equal(await idem(on).isClaimed("b-11", destination), false);
    on.release();
    await held.query("ROLLBACK");
    held.release();
  });

  test("function outside of a transaction is repeated", async (t) => {
    const settings = await startPgBouncer(t);
    const [first, second] = [open(t, settings), open(t, settings)];
    const on = await first.connect();
    assert.equal(await idem(on).isClaimed("b-12", destination), false);
    const held = await hold(second);
    await warned(async () => {
      assert.equal(await idem(on).isClaimed("b-12", destination), false);
    });
    on.release();
    await held.query("ROLLBACK");
    held.release();
  });
});
