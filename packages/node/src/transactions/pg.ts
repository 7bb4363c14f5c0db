/** Transactions of node-postgres. */

import { commitError, idemError, IdemError } from "../errors.js";
import type { Parameter, Row, Statement } from "../statements/statement.js";
import { checkMark, markError, MARK_TRANSACTION } from "./mark.js";
import { markLost } from "./lost.js";
import { FAILED, PgFence, type PgClient } from "./pg-fence.js";
import { beginText, type Beginning, type Ending, type Isolation } from "./pool.js";
import type { Transactor } from "./pool.js";

/** What this package needs of a `Pool`. */
export interface PgPool<C extends PgClient> {
  connect(callback: (error: Error | undefined, client: C | undefined) => void): unknown;
}

/** A part of the work that has ended the transaction has also ended its savepoint. */
const SAVEPOINT = "idem_pg";

export class PgTransactor<C extends PgClient> implements Transactor<C> {
  readonly #pool: PgPool<C>;

  constructor(pool: PgPool<C>) {
    this.#pool = pool;
  }

  transact<F, T>(
    beginning: Beginning<F>,
    work: (client: C, first: F) => Promise<Ending<T>>,
  ): Promise<T> {
    return this.#on(async (client, fence) => {
      const first = await beginWith(client, beginning);
      const ending = await work(fence.around(client), first);
      fence.close();
      if (ending.commit) return ending.last.decode(await commit(client, ending.last));
      // A connection that is lost now has nothing to commit. The pool removes it.
      await rollback(client).catch(ignore);
      return ending.value;
    });
  }

  run<T>(work: (client: C) => Promise<T>, isolation: Isolation = "read committed"): Promise<T> {
    const beginning = { first: MARK_TRANSACTION, isolation };
    const committed = this.transact<undefined, T>(beginning, async (client) => ({
      commit: true,
      last: checkMark(await work(client)),
    }));
    return committed.catch((error: unknown) => {
      throw markError(error);
    });
  }

  async savepoint(client: C, part: (client: C) => Promise<boolean>): Promise<void> {
    await client.query(`SAVEPOINT ${SAVEPOINT}`).catch(rethrow);
    const end = (await part(client)) ? "RELEASE" : "ROLLBACK TO";
    await client.query(`${end} SAVEPOINT ${SAVEPOINT}`).catch(rethrow);
  }

  fence(): PgFence<C> {
    return new PgFence();
  }

  /** Executes `work` on a connection. After an error the connection is rolled back, or closed. */
  async #on<T>(work: (client: C, fence: PgFence<C>) => Promise<T>): Promise<T> {
    const client = await connect(this.#pool).catch((error: unknown) => {
      const failed = idemError(error);
      if (failed.retryable) markLost(failed);
      throw failed;
    });
    const fence = new PgFence<C>();
    let broken = false;
    try {
      return await work(client, fence);
    } catch (error) {
      fence.close();
      broken = await rollback(client).then(
        () => false,
        () => true,
      );
      const failed = withFailure(error, fence.failure);
      if (broken) markLost(failed);
      throw failed;
    } finally {
      client.off("error", ignore);
      client.release(broken);
    }
  }
}

/**
 * Returns a connection that does not end the process when it is lost between two statements. The
 * next statement fails, so the error is not ignored.
 *
 * The pool removes its own listener before it calls the callback. A promise would be too late: the
 * server can report an error together with its readiness.
 */
function connect<C extends PgClient>(pool: PgPool<C>): Promise<C> {
  return new Promise((resolve, reject) => {
    pool.connect((error, client) => {
      client?.on("error", ignore);
      if (client !== undefined && error === undefined) resolve(client);
      else reject(error ?? new Error("the pool returned no connection"));
    });
  });
}

/**
 * BEGIN and the first statement are one simple query: they share a round trip, and the statement is
 * not executed if BEGIN fails.
 */
async function beginWith<F>(client: PgClient, beginning: Beginning<F>): Promise<F> {
  const text = `${beginText(beginning.isolation)}; ${withLiterals(beginning.first, client)}`;
  const results = await client.query(text).catch(rethrow);
  return beginning.first.decode(Array.isArray(results) ? (results.at(-1)?.rows ?? []) : []);
}

/**
 * Executes a statement and COMMIT, and returns the rows of the statement. COMMIT is not executed if
 * the statement fails. A COMMIT of a failed transaction rolls back, and reports this by its command
 * tag only.
 */
async function commit(client: PgClient, last: Statement<unknown>): Promise<Row[]> {
  const text = `${withLiterals(last, client)}; COMMIT`;
  const replies = await client.query(text).catch((error: unknown) => {
    throw commitError(error);
  });
  const results = Array.isArray(replies) ? replies : [replies];
  if (results.at(-1)?.command === "COMMIT") return results[0]?.rows ?? [];
  throw new IdemError("the transaction was rolled back, because one of its statements failed", {
    sqlstate: FAILED,
  });
}

/** Names the statement that failed, whose error the work has ignored. */
function withFailure(error: unknown, cause: unknown): unknown {
  if (!(error instanceof IdemError) || error.sqlstate !== FAILED || !(cause instanceof Error)) {
    return error;
  }
  const text = `the transaction was rolled back, because a statement failed: ${cause.message}`;
  return new IdemError(text, { sqlstate: FAILED, retryable: idemError(cause).retryable, cause });
}

async function rollback(client: PgClient): Promise<void> {
  await client.query("ROLLBACK");
}

/** Returns the text of a statement with its parameters as literals. */
function withLiterals(statement: Statement<unknown>, client: PgClient): string {
  return statement.text.replace(/\$(\d+)/g, (_, number: string) =>
    literal(statement.values[Number(number) - 1] ?? null, client),
  );
}

function literal(value: Parameter, client: PgClient): string {
  if (value === null) return "NULL";
  if (typeof value === "string") return client.escapeLiteral(value);
  return client.escapeLiteral(`\\x${Buffer.from(value).toString("hex")}`);
}

function rethrow(error: unknown): never {
  throw idemError(error);
}

function ignore(): void {
  // The callers say why.
}
