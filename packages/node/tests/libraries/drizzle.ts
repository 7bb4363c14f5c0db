import { drizzle } from "drizzle-orm/node-postgres";
import { drizzle as drizzleOverPostgres } from "drizzle-orm/postgres-js";
import pg from "pg";
import postgres from "postgres";

import type { Library } from "./library.js";

export function connect(): Promise<Library> {
  const pool = new pg.Pool({ max: 2 });
  const db = drizzle(pool);
  type Transaction = Parameters<Parameters<typeof db.transaction>[0]>[0];
  return Promise.resolve({
    name: "Drizzle over pg",
    pools: [db],
    execute: async (executor, text) => (executor as Transaction).execute(text),
    transaction: (work) => db.transaction((tx) => work(tx)),
    close: () => pool.end(),
  });
}

export function connectOverPostgres(): Promise<Library> {
  const sql = postgres({ max: 2, onnotice: () => undefined });
  const db = drizzleOverPostgres(sql);
  type Transaction = Parameters<Parameters<typeof db.transaction>[0]>[0];
  return Promise.resolve({
    name: "Drizzle over postgres.js",
    pools: [db],
    execute: async (executor, text) => (executor as Transaction).execute(text),
    transaction: (work) => db.transaction((tx) => work(tx)),
    close: () => sql.end(),
  });
}
