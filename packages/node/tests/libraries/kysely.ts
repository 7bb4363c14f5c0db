import { CamelCasePlugin, CompiledQuery, Kysely, PostgresDialect, type Transaction } from "kysely";
import pg from "pg";

import type { Library } from "./library.js";

export function connect(): Promise<Library> {
  const pool = new pg.Pool({ max: 2 });
  // Names of columns in camel case must not change the results.
  const db = new Kysely<unknown>({
    dialect: new PostgresDialect({ pool }),
    plugins: [new CamelCasePlugin()],
  });
  return Promise.resolve({
    name: "Kysely",
    pools: [db],
    execute: (executor, text) =>
      (executor as Transaction<unknown>).executeQuery(CompiledQuery.raw(text)),
    transaction: (work) => db.transaction().execute((trx) => work(trx)),
    close: () => db.destroy(),
  });
}
