/** Pools, and what a transaction on one of their connections is. */

import type { Executor } from "../executors/index.js";
import type { Statement } from "../statements/statement.js";

/** A `Pool` of node-postgres. */
export interface PgPool {
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  connect: any;
  readonly totalCount: number;
}

/** The `sql` of postgres.js that has the connections. */
export interface PostgresSql {
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  begin: any;
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  unsafe: any;
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  reserve: any;
}

/** A pool whose transactions this package can begin and commit. */
export type Pool = PgPool | PostgresSql;

/**
 * The connection of a transaction: a `ClientBase` of node-postgres (the pool releases it), or
 * the `TransactionSql` of postgres.js.
 */
export type ClientOf<P extends Pool> = P extends {
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  connect: { (): Promise<infer C>; (callback: any): any };
}
  ? Omit<C, "release" | "end">
  : // eslint-disable-next-line @typescript-eslint/no-explicit-any
    P extends { begin: (options: string, work: (sql: infer S) => any) => any }
    ? S
    : never;

/** How a transaction begins. */
export interface Beginning<F> {
  /** Returns from `BEGIN` with the result of this statement. */
  readonly first: Statement<F>;
  readonly isolation: Isolation;
  /** Whether `savepoint` is called once. */
  readonly hasSavepoint?: boolean;
}

/** `default` is the default of the role or the database. */
export type Isolation = "default" | "read committed" | "repeatable read" | "serializable";

/**
 * How a transaction ends: with ROLLBACK, with a last statement and COMMIT in one round trip, or
 * with COMMIT alone. The last statement fails in a transaction that must not be committed. COMMIT
 * alone needs a transaction in which COMMIT is forbidden.
 */
export type Ending<T> =
  | { readonly commit: boolean; readonly value: T }
  | { readonly commit: true; readonly last: Statement<T> };

/** Begins and ends transactions on connections of a pool. */
export interface Transactor<C> {
  /**
   * Executes `work` in a transaction, and ends it as `work` returns. An error of `work` rolls back.
   * Returns the value of the ending or the result of its statement. Fails with a
   * `CommitUnknownError` if the reply to COMMIT is missing. `work` is repeated once if COMMIT alone
   * arrived without its mark.
   */
  transact<F, T>(
    beginning: Beginning<F>,
    work: (client: C, first: F) => Promise<Ending<T>>,
  ): Promise<T>;
  /**
   * Executes `work` in a READ COMMITTED transaction, and commits it. Fails with 25P01 if `work` has
   * ended the transaction.
   */
  run<T>(work: (client: C) => Promise<T>, isolation?: Isolation): Promise<T>;
  /**
   * Executes a part of the work in a savepoint. Its writes are undone if it returns false, also
   * after a statement that failed. Fails if the part has ended the transaction. The beginning of
   * the transaction must announce it with `hasSavepoint`.
   */
  savepoint(client: C, part: (client: C) => Promise<boolean>): Promise<void>;
  /** Returns the fence of a part of the work, which must end before the transaction does. */
  fence(): Fence<C>;
}

/** Sends the statements of a part of the work until its end. */
export interface Fence<C> {
  /** Returns the client for the work. Its statements fail after the end. */
  around(client: C): C;
  /** Sends no more statements. Those that were sent before keep their results. */
  close(): void;
  /** Whether a statement was to be sent after the end. It was not sent. */
  readonly wasUsedLate: boolean;
}

/** The connection of a transaction as the functions of idem take it. */
export type Client = Executor;

/** Returns the statement that begins a transaction. */
export function beginText(isolation: Isolation): string {
  return isolation === "default" ? "BEGIN" : `BEGIN ISOLATION LEVEL ${isolation.toUpperCase()}`;
}
