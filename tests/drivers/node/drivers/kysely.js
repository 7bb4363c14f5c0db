// Kysely, with statements as text in its transactions.

import { CompiledQuery, Kysely, PostgresDialect } from "kysely";
import pg from "pg";

import { session } from "../transaction.js";
import { parameter, refusal } from "../values.js";

export async function connect() {
  const db = new Kysely({ dialect: new PostgresDialect({ pool: new pg.Pool({ max: 1 }) }) });
  return session({
    pool: db,
    transaction: (callback) => db.transaction().execute(callback),
    async execute(handle, text, values) {
      const query = CompiledQuery.raw(text, values.map(parameter));
      const { rows } = await handle.executeQuery(query);
      return rows.map(Object.values);
    },
    refusal,
    close: () => db.destroy(),
  });
}
