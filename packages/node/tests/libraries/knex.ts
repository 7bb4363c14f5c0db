import knex, { type Knex } from "knex";

import type { Library } from "./library.js";

export function connect(): Promise<Library> {
  // node-postgres reads the variables of the environment when the connection has no settings.
  const db = knex({ client: "pg", connection: {}, pool: { min: 0, max: 2 } });
  return Promise.resolve({
    name: "Knex",
    pools: [db],
    execute: async (executor, text) => (await (executor as Knex.Transaction).raw(text)) as unknown,
    transaction: (work) => db.transaction((trx) => work(trx)),
    close: () => db.destroy(),
  });
}
