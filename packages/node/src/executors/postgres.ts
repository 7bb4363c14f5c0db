/** postgres.js: the `sql` of a transaction. */

import type { Row } from "../statements/statement.js";
import { hasMethods, type Library } from "./execute.js";

/**
 * The `sql` that the callback of `sql.begin` gets. The members of type `never` exclude the `sql`
 * that has the connections.
 */
export interface PostgresTransaction {
  // postgres.js declares the parameters with its own types, so they cannot be named here.
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  unsafe(text: string, values?: any[], options?: { prepare: boolean }): PromiseLike<unknown[]>;
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  savepoint(...parameters: any[]): unknown;
  readonly begin?: never;
}

/**
 * Keeps the statement with its connection, unless the user has set `prepare: false`. Otherwise
 * postgres.js asks the server for the types of the parameters each time.
 */
export const PREPARED = { prepare: true } as const;

export const postgres: Library<PostgresTransaction> = {
  isTransaction: (candidate) => hasMethods(candidate, "unsafe", "savepoint"),
  isPool: (candidate) => hasMethods(candidate, "unsafe", "begin"),
  execute: async (on, text, values) => (await on.unsafe(text, values, PREPARED)) as Row[],
};
