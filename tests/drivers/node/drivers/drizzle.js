// Drizzle over node-postgres, with statements as text in its transactions.

import { DrizzleQueryError, sql } from "drizzle-orm";
import { drizzle } from "drizzle-orm/node-postgres";
import pg from "pg";

import { session } from "../transaction.js";
import { parameter, refusal } from "../values.js";

export async function connect() {
  const pool = new pg.Pool({ max: 1 });
  const db = drizzle(pool);
  return session({
    pool: db,
    transaction: (callback) => db.transaction(callback),
    async execute(handle, text, values) {
      const { rows } = await handle.execute(statement(text, values));
      return rows.map(Object.values);
    },
    refusal: (error) => refusal(error instanceof DrizzleQueryError ? error.cause : error),
    close: () => pool.end(),
  });
}

/** Returns the statement with its values. `sql.param` passes an array as one parameter. */
function statement(text, values) {
  const chunks = text.split(/\$(\d+)/).map((chunk, n) => {
    return n % 2 === 0 ? sql.raw(chunk) : sql`${sql.param(parameter(values[chunk - 1]))}`;
  });
  return sql.join(chunks);
}
