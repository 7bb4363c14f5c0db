// TypeORM, with statements as text on the EntityManager of its transactions.

import { DataSource, QueryFailedError } from "typeorm";

import { session } from "../transaction.js";
import { parameter, refusal } from "../values.js";

export async function connect() {
  // node-postgres reads the variables of the environment when the options have no settings.
  const source = await new DataSource({ type: "postgres", poolSize: 1 }).initialize();
  return session({
    pool: source.manager,
    transaction: (callback) => source.transaction(callback),
    async execute(manager, text, values) {
      const rows = await manager.query(text, values.map(parameter));
      return rows.map(Object.values);
    },
    refusal: (error) => refusal(error instanceof QueryFailedError ? error.driverError : error),
    close: () => source.destroy(),
  });
}
