/** Drizzle: the `tx` of a transaction, over any driver of PostgreSQL. */

import type { Parameter, Row } from "../statements/statement.js";
import { hasMethods, type Library } from "./execute.js";

/** The `tx` that the callback of `db.transaction` gets. `$client` excludes `db`. */
export interface DrizzleTransaction {
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  execute(query: any): PromiseLike<unknown>;
  rollback(): never;
  setTransaction(config: object): Promise<void>;
  readonly $client?: never;
}

export const drizzle: Library<DrizzleTransaction> = {
  isTransaction: (candidate) => hasMethods(candidate, "execute", "rollback", "setTransaction"),
  isPool: (candidate) =>
    hasMethods(candidate, "execute", "transaction", "insert") && !drizzle.isTransaction(candidate),
  execute: async (on, text, values) => rowsOf(await on.execute(statement(text, values))),
};

/** Returns what `execute` needs of the SQL objects of Drizzle, which cannot be imported here. */
function statement(text: string, params: Parameter[]): object {
  return { getSQL: () => ({ toQuery: () => ({ sql: text, params }) }) };
}

/** Drizzle returns the result of its driver: that of node-postgres, or the array of postgres.js. */
function rowsOf(result: unknown): Row[] {
  return (Array.isArray(result) ? result : (result as { rows: unknown }).rows) as Row[];
}
