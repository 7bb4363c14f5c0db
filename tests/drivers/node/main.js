// Executes statements with one driver: `node main.js <driver>`.
//
// Reads requests from the standard input, one JSON object on each line, and writes one reply on a
// line for each of them. tests/drivers/README.md describes both. Connects as the variables PGHOST,
// PGPORT, PGUSER and PGDATABASE define.

import { createInterface } from "node:readline";

import { Json, Refusal } from "./protocol.js";

const [driver] = process.argv.slice(2);
const { connect } = await import(`./drivers/${driver}.js`);
const sessions = new Map();

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  const reply = "sql" in request ? await execute(request) : await closeAll();
  process.stdout.write(`${JSON.stringify(reply)}\n`);
}

async function execute({ session, sql, arguments: values }) {
  if (!sessions.has(session)) sessions.set(session, await connect());
  try {
    const rows = await sessions.get(session).execute(sql, values.map(argument));
    return { rows: rows.map((row) => row.map(cell)) };
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    const { sqlstate, hint, message } = error;
    return { error: { sqlstate, hint, message } };
  }
}

async function closeAll() {
  for (const session of sessions.values()) await session.close();
  sessions.clear();
  return {};
}

/** Returns an argument of a request as a value of JavaScript. */
function argument(value) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return value;
  return "bytes" in value ? Buffer.from(value.bytes, "base64") : new Json(value.json);
}

/** Returns a value of a result as it is written in a reply. */
function cell(value) {
  if (value instanceof Json) return { json: value.value };
  if (Buffer.isBuffer(value)) return { bytes: value.toString("base64") };
  if (Array.isArray(value)) return value.map(cell);
  if (value instanceof Date || (value !== null && typeof value === "object")) {
    throw new Error(`cast this column to text in the SQL: ${value}`);
  }
  return value;
}
