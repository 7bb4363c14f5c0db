/** Poolers that remove comments, and poolers that do not keep prepared statements. */

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { test } from "node:test";

import pg from "pg";

import { process as processMessage } from "../src/index.js";
import { startProxy } from "./proxy.js";
import { isClaimed } from "./server.js";

const destination = `poolers-${randomUUID()}`;

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
