import postgres from "postgres";

import type { Library } from "./library.js";

export function connect(): Promise<Library> {
  // Names of columns in camel case must not change the results.
  return library("postgres.js", { transform: postgres.camel });
}

/** Settings for PgBouncer, with which postgres.js knows no arrays. */
export function connectUnprepared(): Promise<Library> {
  return library("postgres.js without types", { prepare: false, fetch_types: false });
}

function library(name: string, options: postgres.Options<Record<string, never>>): Promise<Library> {
  const sql = postgres({ max: 2, onnotice: () => undefined, ...options });
  return Promise.resolve({
    name,
    pools: [sql],
    execute: async (executor, text) => (executor as postgres.TransactionSql).unsafe(text),
    transaction: <T>(work: (tx: postgres.TransactionSql) => Promise<T>) =>
      sql.begin(work) as Promise<T>,
    close: () => sql.end(),
  });
}
