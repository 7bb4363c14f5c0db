/** Executes the specification cases through the methods of the package, and the rest as SQL. */

import assert from "node:assert/strict";
import { describe, test } from "node:test";

import pg from "pg";

import { idem, IdemError } from "../src/index.js";
import { createDatabase } from "./server.js";
import { argumentOf, Json, readCases, type Call, type Case, type Step } from "./spec/cases.js";
import { METHODS } from "./spec/methods.js";
import { translate } from "./spec/translate.js";
import { check } from "./spec/values.js";

/** The folder of the cases, which all drivers of idem execute. */
const folder = process.env["IDEM_CASES"] ?? "../../tests/spec/cases";

const INT8: number = pg.types.builtins.INT8;
const JSON_TYPES: ReadonlySet<number> = new Set([pg.types.builtins.JSON, pg.types.builtins.JSONB]);
const used = new Map<string, number>();
let asSql = 0;

/** The values of the statements that are executed as SQL. */
const types: pg.CustomTypesConfig = {
  getTypeParser(type: number, format?: unknown) {
    if (type === INT8) return Number;
    if (JSON_TYPES.has(type)) {
      return (text: string) => new Json(JSON.parse(text) as unknown);
    }
    const parserOf = pg.types.getTypeParser as (type: number, format: unknown) => unknown;
    return parserOf(type, format) as (text: string) => unknown;
  },
};

const database = await createDatabase();

for (const [file, cases] of readCases(folder)) {
  describe(file, { concurrency: false }, () => {
    for (const specified of cases) test(specified.name, () => execute(specified));
  });
}

test("each method has executed a case", (t) => {
  const unused = Object.keys(METHODS).filter((name) => !used.has(name));
  assert.deepEqual(unused, []);
  const total = [...used.values()].reduce((sum, count) => sum + count);
  t.diagnostic(`${String(total)} statements as methods, ${String(asSql)} as SQL`);
  assert.ok(total > 400, String(total));
});

async function execute(specified: Case): Promise<void> {
  const sessions = new Map<string, pg.Client>();
  const saved = new Map<string, unknown>();
  try {
    for (const [n, step] of specified.steps.entries()) {
      const call: Call = typeof step === "string" ? { sql: step } : step;
      const client = await sessionOf(sessions, call.session ?? "");
      await executeStep(client, step, call, saved).catch((error: unknown) => {
        throw new Error(`step ${String(n + 1)}: ${call.sql}`, { cause: error });
      });
    }
    for (const client of sessions.values()) await client.query("ROLLBACK");
  } finally {
    for (const client of sessions.values()) await client.end();
  }
}

async function sessionOf(sessions: Map<string, pg.Client>, name: string): Promise<pg.Client> {
  const known = sessions.get(name);
  if (known !== undefined) return known;
  const client = new pg.Client({ database, types });
  await client.connect();
  await client.query("SET statement_timeout = '60s'");
  sessions.set(name, client);
  return client;
}

async function executeStep(
  client: pg.Client,
  step: Step,
  call: Call,
  saved: Map<string, unknown>,
): Promise<void> {
  const values = (call.arguments ?? []).map((value) => argumentOf(value, saved));
  let rows: unknown[][];
  try {
    rows = await send(client, step, call, values);
  } catch (error) {
    const { sqlstate, hint } = refusal(error);
    assert.ok(call.error !== undefined, error as Error);
    assert.deepEqual({ sqlstate, hint }, { hint: undefined, ...call.error });
    return;
  }
  assert.equal(call.error, undefined, `expected an error, got ${JSON.stringify(rows)}`);
  if (call.rows === undefined) return;
  assert.equal(rows.length, call.rows.length, `got the rows ${String(rows)}`);
  for (const [n, expected] of call.rows.entries()) {
    for (const [m, value] of expected.entries()) check(value, rows[n]?.[m], saved);
  }
}

async function send(
  client: pg.Client,
  step: Step,
  call: Call,
  values: unknown[],
): Promise<unknown[][]> {
  const translated = typeof step === "string" ? undefined : translate(call, values);
  if (translated !== undefined) {
    used.set(translated.name, (used.get(translated.name) ?? 0) + 1);
    return translated.execute(idem(client));
  }
  asSql += 1;
  const parameters = values.map((value) =>
    value instanceof Json ? JSON.stringify(value.value) : value,
  );
  const query = { text: call.sql, values: parameters, rowMode: "array" as const };
  return (await client.query<unknown[]>(query)).rows;
}

function refusal(error: unknown): { sqlstate: string | undefined; hint: string | undefined } {
  if (error instanceof IdemError) return error;
  if (error instanceof pg.DatabaseError) return { sqlstate: error.code, hint: error.hint };
  throw error;
}
