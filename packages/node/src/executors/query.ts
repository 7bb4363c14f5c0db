/** node-postgres: `Client` and `PoolClient`. Also any object with `query(text, values)`. */

import { serverError } from "../driver-error.js";
import type { Row } from "../statements/statement.js";
import { hasMethods, member, type Library } from "./execute.js";
import { canPrepare, isLost, nameOf, preparedError } from "./prepared.js";

/** The connection of a transaction, as node-postgres has it: a `Client` or a `PoolClient`. */
export type QueryExecutor = Connection & (Connected | PoolClient | Client);

/**
 * The members of type `never` exclude a `Pool`, which has `query` too, and the objects of other
 * libraries.
 */
interface Connection {
  query(text: string, values: unknown[]): Promise<{ rows: unknown[] }>;
  /** Excludes `Pool` of node-postgres. */
  readonly totalCount?: never;
  /** Excludes `DataSource` of TypeORM. */
  readonly createQueryRunner?: never;
  /** Excludes Drizzle, whose `query` has the relational queries. */
  readonly $client?: never;
}

/** Excludes an object that connects, such as a wrapper of a pool. */
interface Connected {
  readonly connect?: never;
}

/** A connection that connects, and is given back to its pool. */
interface PoolClient {
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  release(...parameters: any[]): unknown;
}

/** A connection that connects, and has no pool. Only connections have parsers of types. */
interface Client {
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  getTypeParser(...parameters: any[]): unknown;
}

export const query: Library<QueryExecutor> = {
  isTransaction: (candidate) => hasMethods(candidate, "query"),
  // A pool of node-postgres, one with the same interface, for example of Neon, or a wrapper of one.
  isPool: (candidate) =>
    hasMethods(candidate, "query", "connect") &&
    (typeof member(candidate, "totalCount") === "number" ||
      typeof member(candidate, "idleCount") === "number" ||
      !(hasMethods(candidate, "release") || hasMethods(candidate, "getTypeParser"))),
  execute: async (on, text, values) => (await execute(on, text, values)).rows as Row[],
};

interface Config {
  readonly name: string;
  readonly text: string;
  readonly values: unknown[];
}

async function execute(on: QueryExecutor, text: string, values: unknown[]) {
  if (!canPrepare(on)) return on.query(text, values);
  const query = on.query.bind(on) as unknown as (config: Config) => ReturnType<typeof on.query>;
  try {
    return await query({ name: nameOf(text), text, values });
  } catch (error) {
    const failed = preparedError(on, error);
    if (!isLost(error)) throw failed;
    // Outside of a transaction the statement can be repeated. A transaction has failed.
    return on.query(text, values).catch((again: unknown) => {
      throw serverError(again)?.sqlstate === "25P02" ? failed : again;
    });
  }
}
