/** The pools whose transactions the package begins. */

import pg from "pg";
import postgres from "postgres";

import type { Executor, Pool } from "../src/index.js";

/** A pool, and how the tests use its connections. */
export interface TestPool {
  readonly pool: Pool;
  readonly close: () => Promise<void>;
}

/** Executes a statement on the client that a handler got. */
export async function execute(client: unknown, text: string, values: unknown[] = []) {
  if (isPostgres(client)) return [...(await client.unsafe(text, values as never[]))] as unknown[];
  return (await (client as pg.PoolClient).query(text, values)).rows as unknown[];
}

/** Returns the client of a handler as an executor. */
export function asExecutor(client: unknown): Executor {
  return client as Executor;
}

function isPostgres(client: unknown): client is postgres.TransactionSql {
  return typeof client === "function";
}

/** What differs from the settings of the environment. */
export interface Settings {
  readonly max?: number;
  readonly host?: string;
  readonly port?: number;
  readonly user?: string;
}

export const POOLS: Readonly<Record<string, (settings?: Settings) => TestPool>> = {
  pg(settings = {}) {
    const pool = new pg.Pool({ max: 4, ...settings });
    return { pool, close: () => pool.end() };
  },
  "postgres.js"(settings = {}) {
    const sql = postgres({ max: 4, onnotice: () => undefined, ...settings });
    return { pool: sql, close: () => sql.end({ timeout: 1 }) };
  },
};
