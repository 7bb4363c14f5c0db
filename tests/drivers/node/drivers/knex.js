// Knex, with statements as text in its transactions.

import knex from "knex";

import { session } from "../transaction.js";
import { parameter, refusal } from "../values.js";

export async function connect() {
  // node-postgres reads the variables of the environment when the connection has no settings.
  const db = knex({ client: "pg", connection: {}, pool: { min: 0, max: 1 } });
  return session({
    pool: db,
    transaction: (callback) => db.transaction(callback),
    async execute(handle, text, values) {
      const query = handle.raw(...bound(text, values.map(parameter)));
      // A row as an object would have one value for two columns with the same name.
      const { rows } = await query.options({ rowMode: "array" });
      return rows;
    },
    refusal,
    close: () => db.destroy(),
  });
}

/** Returns the statement with ? for $1, and the values in the order of the placeholders. */
function bound(text, values) {
  const bindings = [];
  const sql = text.replaceAll("?", "\\?").replace(/\$(\d+)/g, (_, number) => {
    bindings.push(values[number - 1]);
    return "?";
  });
  return [sql, bindings];
}
