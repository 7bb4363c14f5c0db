/** Transactions that this package begins and commits, for work that the user leaves to it. */

import { repeat } from "../backoff.js";
import { member, hasMethods } from "../executors/execute.js";
import type { PgClient } from "./pg-fence.js";
import { PgTransactor, type PgPool } from "./pg.js";
import { PostgresTransactor, type PostgresBegin, type PostgresClient } from "./postgres.js";
import { checkOptions } from "../options.js";
import { isRepeatable } from "./lost.js";
import type { ClientOf, Isolation, Pool, Transactor } from "./pool.js";

export interface TransactionOptions {
  /** READ COMMITTED by default, which leases, inbox, dead letters and relays need. */
  readonly isolation?: Isolation | undefined;
  /**
   * How often the transaction is repeated after 40001, 40P01 or the loss of its connection before
   * COMMIT was sent. 0 by default.
   */
  readonly retries?: number | undefined;
}

/** Executes a function in a transaction of its own. */
export type Transactions<C> = <T>(
  work: (client: C) => Promise<T>,
  options?: TransactionOptions,
) => Promise<T>;

/**
 * Returns a function that executes another function in a transaction of its own: BEGIN, the
 * function, COMMIT. An error of the function rolls back. Fails with the error of a statement also
 * if the function has ignored it, with 25P01 if the function itself has ended the transaction, and
 * with a `CommitUnknownError` if the reply to COMMIT is missing.
 *
 * @param pool a `Pool` of node-postgres or the `sql` of postgres.js.
 */
export function transactions<P extends Pool>(pool: P): Transactions<ClientOf<P>> {
  const transactor = transactorOf(pool);
  return async (work, options = {}) => {
    checkOptions("transactions", options, "isolation", "retries");
    const run = () => transactor.run(work, options.isolation);
    return repeat(run, options.retries ?? 0, isRepeatable);
  };
}

/** Returns what begins and ends the transactions of a pool. Throws a TypeError for no pool. */
export function transactorOf<P extends Pool>(pool: P): Transactor<ClientOf<P>> {
  const candidate: unknown = pool;
  if (isPgPool(candidate)) return asTransactor<ClientOf<P>>(new PgTransactor(candidate));
  if (isPostgresSql(candidate)) return asTransactor<ClientOf<P>>(new PostgresTransactor(candidate));
  throw new TypeError(
    "a Pool of node-postgres or the sql of postgres.js is needed here, not a connection or a " +
      "transaction: this function begins and commits transactions of its own",
  );
}

/** The types of the pool's connection are known to its user only. */
function asTransactor<C>(transactor: unknown): Transactor<C> {
  return transactor as Transactor<C>;
}

function isPgPool(candidate: unknown): candidate is PgPool<PgClient> {
  return (
    typeof candidate === "object" &&
    candidate !== null &&
    hasMethods(candidate, "connect", "query") &&
    typeof member(candidate, "totalCount") === "number"
  );
}

function isPostgresSql(candidate: unknown): candidate is PostgresBegin<PostgresClient> {
  return typeof candidate === "function" && hasMethods(candidate, "begin", "unsafe");
}
