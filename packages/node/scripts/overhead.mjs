// Compares a message that is processed with the package with the same SQL written by hand. Prints
// the median time of a message, and its ratio to "by hand". PGHOST, PGPORT, PGUSER and PGDATABASE
// define a database with the extension. Run it after `npm run build`.

import { randomUUID } from "node:crypto";

import pg from "pg";
import postgres from "postgres";

import { idem, process as processMessage } from "idem-pg";

const MESSAGES = 4000;
const WARM_UP = 200;
const destination = `overhead-${randomUUID()}`;
const effect = { topic: "receipts", payload: { paid: 1 } };
const effects = JSON.stringify([effect]);
const ROWS = 1000;
const update = () =>
  `UPDATE overhead SET paid = paid + 1 WHERE id = ${Math.floor(Math.random() * ROWS)}`;

const pool = new pg.Pool({ max: 1 });
const sql = postgres({ max: 1, onnotice: () => undefined });
await pool.query("CREATE TABLE IF NOT EXISTS overhead (id int PRIMARY KEY, paid bigint)");
await pool.query(
  "INSERT INTO overhead SELECT n, 0 FROM generate_series(0, $1) n ON CONFLICT DO NOTHING",
  [ROWS],
);

async function inTransaction(work) {
  const client = await pool.connect();
  await client.query("BEGIN");
  await work(client);
  await client.query("COMMIT");
  client.release();
}

const claimText = "SELECT idem_try_claim($1, $2) AS mine";
const recordText = "SELECT idem_record_effects($1, $2, $3) AS ids";
const variants = {
  "pg": {
    "by hand": (id) =>
      inTransaction(async (client) => {
        await client.query(claimText, [id, destination]);
        await client.query(update());
        await client.query(recordText, [id, destination, effects]);
      }),
    "by hand, COMMIT forbidden": async (id) => {
      const client = await pool.connect();
      const literals = `${client.escapeLiteral(id)}, ${client.escapeLiteral(destination)}`;
      await client.query(`BEGIN; SELECT idem_try_claim(${literals}), idem_forbid_commit()`);
      await client.query(update());
      await client.query(recordText, [id, destination, effects]);
      await client.query("SELECT idem_allow_commit(); COMMIT");
      client.release();
    },
    "idem": (id) =>
      inTransaction(async (client) => {
        await idem(client).tryClaim(id, destination);
        await client.query(update());
        await idem(client).record(id, destination, effect);
      }),
    "process": (id) =>
      processMessage(pool, { id, destination }, async (client) => {
        await client.query(update());
        return effect;
      }),
  },
  "postgres.js": {
    "by hand": (id) =>
      sql.begin(async (tx) => {
        await tx`SELECT idem_try_claim(${id}, ${destination}) AS mine`;
        await tx.unsafe(update());
        await tx`SELECT idem_record_effects(${id}, ${destination}, ${tx.json([effect])}) AS ids`;
      }),
    "by hand, COMMIT forbidden": (id) =>
      sql.begin(async (tx) => {
        await tx`SELECT idem_try_claim(${id}, ${destination}) AS mine, idem_forbid_commit()`;
        await tx.unsafe(update());
        await tx`SELECT idem_record_effects(${id}, ${destination}, ${tx.json([effect])}) AS ids`;
        await tx`SELECT idem_allow_commit()`;
      }),
    "idem": (id) =>
      sql.begin(async (tx) => {
        await idem(tx).tryClaim(id, destination);
        await tx.unsafe(update());
        await idem(tx).record(id, destination, effect);
      }),
    "process": (id) =>
      processMessage(sql, { id, destination }, async (tx) => {
        await tx.unsafe(update());
        return effect;
      }),
  },
};

for (const [library, ways] of Object.entries(variants)) {
  const names = Object.keys(ways);
  const times = Object.fromEntries(names.map((name) => [name, []]));
  for (let n = 0; n < WARM_UP; n += 1) for (const name of names) await ways[name](randomUUID());
  // The ways take turns, so that other processes of the machine slow all of them.
  for (let n = 0; n < MESSAGES; n += 1) {
    for (const name of names) {
      const start = performance.now();
      await ways[name](randomUUID());
      times[name].push(performance.now() - start);
    }
  }
  const medians = names.map((name) => median(times[name]));
  for (const [n, value] of medians.entries()) {
    const ratio = (value / medians[0]).toFixed(2);
    console.log(`${library} ${names[n]}: ${(value * 1000).toFixed(0)} us, ${ratio}x`);
  }
}
await pool.end();
await sql.end();

function median(values) {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];
}
