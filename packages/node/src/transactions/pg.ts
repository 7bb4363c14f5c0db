/** Transactions of node-postgres. */

import { emitWarning } from "node:process";

import { commitError, idemError, IdemError } from "../errors.js";
import { isLost } from "../executors/prepared.js";
import { allowCommit } from "../statements/commit.js";
import type { Row, Statement } from "../statements/statement.js";
import { checkMark, hasEndedTransaction, markError, MARK_TRANSACTION } from "./mark.js";
import { markLost } from "./lost.js";
import { executeAll } from "./pg-batch.js";
import { FAILED, PgFence, type PgClient } from "./pg-fence.js";
import { beginText, type Beginning, type Ending, type Isolation } from "./pool.js";
import type { Transactor } from "./pool.js";

/** What this package needs of a `Pool`. */
export interface PgPool<C extends PgClient> {
  connect(callback: (error: Error | undefined, client: C | undefined) => void): unknown;
}

/** Commits a transaction in which COMMIT is forbidden: the server reads the comment. */
const MARKED_COMMIT = "COMMIT /* idem */";

/** Whether a COMMIT of this process has arrived without its comment. */
let isMarkRemoved = false;

/** The transaction was rolled back, because its COMMIT arrived without its comment. */
class MarkRemovedError extends IdemError {}

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
    const attempt = () => this.#on<T>(async (client, fence) => {
      const first = await beginWith(client, beginning);
      const ending = await work(fence.around(client), first);
      fence.close();
      if ("last" in ending) return ending.last.decode(await commit(client, ending.last));
      if (ending.commit) {
        await commitAlone(client);
        return ending.value;
      }
      // A connection that is lost now has nothing to commit. The pool removes it.
      await rollback(client).catch(ignore);
      return ending.value;
    });
    return attempt().catch((error: unknown) => {
      if (error instanceof MarkRemovedError) return attempt();
      throw error;
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
 * BEGIN, the first statement and SAVEPOINT share a round trip. After an error the rest is skipped.
 * Nothing was done when a prepared statement is lost here, so the transaction begins again.
 */
async function beginWith<F>(client: PgClient, beginning: Beginning<F>): Promise<F> {
  const parts = [{ text: beginText(beginning.isolation) }, beginning.first];
  if (beginning.hasSavepoint === true) parts.push({ text: `SAVEPOINT ${SAVEPOINT}` });
  const send = () => executeAll(client, parts);
  const [, rows = []] = await send()
    .catch(async (error: unknown) => {
      if (!isLost(error)) throw error;
      await rollback(client);
      return send();
    })
    .catch(rethrow);
  return beginning.first.decode(rows);
}

/**
 * Executes a statement and COMMIT, and returns the rows of the statement. COMMIT is not executed if
 * the statement fails, which it does in a failed transaction.
 */
async function commit(client: PgClient, last: Statement<unknown>): Promise<Row[]> {
  const [rows = []] = await executeAll(client, [last, { text: "COMMIT" }]).catch(
    (error: unknown) => {
      throw commitError(error);
    },
  );
  return rows;
}

/** Commits a transaction in which COMMIT is forbidden. */
async function commitAlone(client: PgClient): Promise<void> {
  const isMarked = !isMarkRemoved;
  const text = isMarked ? MARKED_COMMIT : `${allowCommit(undefined).text}; COMMIT`;
  await client.query(text).catch((error: unknown) => {
    const failed = commitError(error);
    if (failed.sqlstate === "25P01") throw hasEndedTransaction(error);
    if (failed.sqlstate === "2D000" && isMarked) throw markRemoved(failed);
    throw failed;
  });
}

function markRemoved({ message, sqlstate, hint, cause }: IdemError): MarkRemovedError {
  if (!isMarkRemoved) {
    emitWarning(
      "idem-pg: a pooler or a proxy removes comments from statements, so COMMIT arrived without " +
        "its mark: from now on this process executes idem_allow_commit() before each COMMIT",
    );
  }
  isMarkRemoved = true;
  return new MarkRemovedError(message, { sqlstate, hint, cause });
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

function rethrow(error: unknown): never {
  throw idemError(error);
}

function ignore(): void {
  // The callers say why.
}
