// Compares a message that is processed with the package with the same SQL written by hand. Prints
// the median time of a message, and its ratio to "by hand". PGHOST, PGPORT, PGUSER and PGDATABASE
// define a database with the extension. Run it after `npm run build`: overhead.mjs [messages].

import { Buffer } from "node:buffer";
import { createHash, randomUUID } from "node:crypto";

import { Hono } from "hono";
import pg from "pg";
import postgres from "postgres";

import { idem, process as processMessage } from "idem-pg";
import { honoIdempotency, Scope } from "idem-pg/http";

const MESSAGES = Number(process.argv[2] ?? 4000);
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

// All ways prepare their statements.
const claim = { name: "claim", text: "SELECT idem_try_claim($1, $2) AS mine" };
const record = { name: "record", text: "SELECT idem_record_effects($1, $2, $3) AS ids" };
const claimAndForbid = {
  name: "claim_and_forbid",
  text: "SELECT idem_try_claim($1, $2), idem_forbid_commit()",
};
const claimRequest = {
  name: "claim_request",
  text: "SELECT outcome, idem_forbid_commit() FROM idem_claim($1, $2, false, $3)",
};
const recordRequest = {
  name: "record_request",
  text: `SELECT idem_finish_call($1, $2, 'http-response', $4::text::json), idem_allow_commit()
    FROM idem_begin_call($1, $2, 'http-response', $3)`,
};

const app = new Hono();
const once = honoIdempotency(pool, { destination, scope: Scope.singleTenant() });
app.post("/idem", once, async (c) => {
  await once.of(c).client.query(update());
  return c.json({ paid: (await c.req.json()).cents }, 201);
});
app.post("/by-hand", async (c) => {
  const key = c.req.header("idempotency-key");
  const body = await c.req.text();
  const fingerprint = createHash("sha256").update(body).digest();
  const response = JSON.stringify({ paid: JSON.parse(body).cents });
  await inTransaction(async (client) => {
    await client.query({ ...claimRequest, values: [key, destination, fingerprint] });
    await client.query("SAVEPOINT s");
    await client.query(update());
    await client.query("RELEASE SAVEPOINT s");
    const base64 = Buffer.from(response).toString("base64");
    const request = JSON.stringify({ fingerprint: fingerprint.toString("hex") });
    const recorded = { ...JSON.parse(request), status: 201, headers: [], body_base64: base64 };
    const values = [key, destination, request, JSON.stringify(recorded)];
    await client.query({ ...recordRequest, values });
  });
  return c.body(response, 201, { "content-type": "application/json" });
});

async function post(path, id) {
  const headers = { "idempotency-key": id, "content-type": "application/json" };
  const response = await app.request(path, { method: "POST", headers, body: '{"cents":100}' });
  if (response.status !== 201) throw new Error(await response.text());
  await response.text();
}

const variants = {
  "pg": {
    "by hand": (id) =>
      inTransaction(async (client) => {
        await client.query({ ...claim, values: [id, destination] });
        await client.query(update());
        await client.query({ ...record, values: [id, destination, effects] });
      }),
    "by hand, COMMIT forbidden": async (id) => {
      const client = await pool.connect();
      await client.query("BEGIN");
      await client.query({ ...claimAndForbid, values: [id, destination] });
      await client.query(update());
      await client.query({ ...record, values: [id, destination, effects] });
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
  "HTTP over pg": {
    "by hand": (id) => post("/by-hand", id),
    "idem": (id) => post("/idem", id),
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
