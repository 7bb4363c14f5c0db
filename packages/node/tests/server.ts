/** The server of the tests, which PGHOST, PGPORT, PGUSER and PGDATABASE define. */

import { randomUUID } from "node:crypto";
import { after } from "node:test";

import pg from "pg";

/** What the tests execute themselves needs it, whatever the default of the server is. */
export const READ_COMMITTED = "-c default_transaction_isolation=read\\ committed";

/** Executes a statement on a connection of its own, and returns its rows as arrays. */
export async function query(text: string, values: unknown[] = []): Promise<unknown[][]> {
  const client = new pg.Client({ options: READ_COMMITTED });
  await client.connect();
  try {
    const { rows } = await client.query<unknown[]>({ text, values, rowMode: "array" });
    return rows;
  } finally {
    await client.end();
  }
}

/** Creates another database with the extension for a file of tests, and returns its name. */
export async function createDatabase(): Promise<string> {
  const database = `test_${randomUUID().replaceAll("-", "")}`;
  const { PGDATABASE: first } = process.env;
  await query(`CREATE DATABASE ${database}`);
  after(async () => {
    process.env["PGDATABASE"] = first ?? "postgres";
    await query(`DROP DATABASE ${database} WITH (FORCE)`);
  });
  const client = new pg.Client({ database });
  await client.connect();
  await client.query("CREATE EXTENSION idem");
  await client.end();
  return database;
}

/** Executes a statement until its first value is true. Fails after 20 seconds. */
export async function until(text: string, values: unknown[] = []): Promise<void> {
  const client = new pg.Client({ options: READ_COMMITTED });
  await client.connect();
  try {
    const endsAt = performance.now() + 20_000;
    for (;;) {
      const { rows } = await client.query<unknown[]>({ text, values, rowMode: "array" });
      if (rows[0]?.[0] === true) return;
      if (performance.now() > endsAt) throw new Error(`is not true: ${text} ${String(values)}`);
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
  } finally {
    await client.end();
  }
}

/** Returns whether another connection finds the claim of the message. */
export async function isClaimed(id: string, destination: string): Promise<boolean> {
  const [[claimed] = []] = await query("SELECT idem_is_claimed($1, $2)", [id, destination]);
  return claimed === true;
}
