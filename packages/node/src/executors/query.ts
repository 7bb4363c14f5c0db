/** node-postgres: `Client` and `PoolClient`. Also any object with `query(text, values)`. */

import type { Row } from "../statements/statement.js";
import { hasMethods, member, type Library } from "./execute.js";

/**
 * The connection of a transaction, as node-postgres has it: a `Client` or a `PoolClient`.
 *
 * The members of type `never` exclude a `Pool`, which has `query` too, and the objects of other
 * libraries.
 */
export interface QueryExecutor {
  query(text: string, values: unknown[]): Promise<{ rows: unknown[] }>;
  /** Excludes `Pool` of node-postgres. */
  readonly totalCount?: never;
  /** Excludes `DataSource` of TypeORM. */
  readonly createQueryRunner?: never;
  /** Excludes Drizzle, whose `query` has the relational queries. */
  readonly $client?: never;
}

export const query: Library = {
  executeOn(candidate) {
    if (!isQueryExecutor(candidate)) return undefined;
    return async (text, values) => (await candidate.query(text, [...values])).rows as Row[];
  },
  // A pool of node-postgres or one with the same interface, for example of Neon.
  isPool: (candidate) =>
    hasMethods(candidate, "query", "connect") &&
    (typeof member(candidate, "totalCount") === "number" ||
      typeof member(candidate, "idleCount") === "number"),
};

function isQueryExecutor(candidate: object): candidate is QueryExecutor {
  return hasMethods(candidate, "query");
}
