/** Transactions of postgres.js. */

import { serverError } from "../driver-error.js";
import { commitError, idemError, IdemError } from "../errors.js";
import { PREPARED } from "../executors/libraries.js";
import { allowCommit } from "../statements/commit.js";
import { command, type Row, type Statement } from "../statements/statement.js";
import { markLost } from "./lost.js";
import { checkMark, markError, MARK_TRANSACTION } from "./mark.js";
import type { Beginning, Ending, Isolation, Transactor } from "./pool.js";
import { allOf, PostgresFence, type PostgresClient } from "./postgres-fence.js";

export type { PostgresClient };

/** What this package needs of the `sql` of postgres.js. */
export interface PostgresBegin<C> {
  begin<T>(options: string, work: (client: C) => Promise<T>): Promise<T>;
}

/** Makes postgres.js roll back, which it does only after an error. */
class RollbackRequested extends Error {}

const CHECK = command("SELECT 1", undefined);

/** With COMMIT, the value can arrive after COMMIT has been sent. */
interface Ended<T> {
  readonly commit: boolean;
  readonly value: T | Promise<T>;
}

/** How the work of a transaction has ended. */
interface Progress<T> {
  ending?: Ended<T>;
  failure?: { readonly error: unknown };
}

export class PostgresTransactor<C extends PostgresClient> implements Transactor<C> {
  readonly #sql: PostgresBegin<C>;

  constructor(sql: PostgresBegin<C>) {
    this.#sql = sql;
  }

  transact<F, T>(
    beginning: Beginning<F>,
    work: (client: C, first: F) => Promise<Ending<T>>,
  ): Promise<T> {
    return this.#begin(beginning.isolation, async (client) => {
      const ending = await work(client, await execute(client, beginning.first));
      if ("last" in ending) return committing(client, ending.last);
      // The COMMIT of postgres.js has no mark.
      return ending.commit ? committing(client, allowCommit(ending.value)) : ending;
    });
  }

  run<T>(work: (client: C) => Promise<T>, isolation: Isolation = "read committed"): Promise<T> {
    const committed = this.#begin(isolation, async (client) => {
      // Shares a round trip with the first statement of the work.
      void sent(client, MARK_TRANSACTION);
      return committing(client, checkMark(await allOf(work(client))));
    });
    return committed.catch((error: unknown) => {
      throw markError(error);
    });
  }

  async savepoint(client: C, part: (client: C) => Promise<boolean>): Promise<void> {
    // After a statement that failed, postgres.js commits only if the statement was in a savepoint
    // of its own.
    const ended = client.savepoint("idem_pg", async (inner) => {
      if (!(await part(inner as C))) throw new RollbackRequested();
      // postgres.js does not release the savepoint, so nothing else shows a failed transaction.
      await execute(inner, CHECK);
    });
    await ended.catch((error: unknown) => {
      if (!(error instanceof RollbackRequested)) throw idemError(error);
    });
  }

  fence(): PostgresFence {
    return new PostgresFence();
  }

  async #begin<T>(isolation: Isolation, work: (client: C) => Promise<Ended<T>>): Promise<T> {
    const fence = new PostgresFence();
    const progress: Progress<T> = {};
    const options = isolation === "default" ? "" : `isolation level ${isolation}`;
    try {
      const begun = this.#sql.begin(options, (client) =>
        worked(progress, () => fence.unlessEnded(() => work(fence.around(client)))),
      );
      const ended = await Promise.race([begun, fence.left]);
      return await ended.value;
    } catch (error) {
      return await endingOf(progress, error);
    } finally {
      fence.end();
    }
  }
}

async function worked<T>(
  progress: Progress<T>,
  work: () => Promise<Ended<T>>,
): Promise<Ended<T>> {
  try {
    progress.ending = await work();
  } catch (error) {
    progress.failure = { error };
    throw error;
  }
  if (!progress.ending.commit) throw new RollbackRequested();
  return progress.ending;
}

/** Returns the result of a transaction that has failed with this error. */
function endingOf<T>({ ending, failure }: Progress<T>, error: unknown): T | Promise<T> {
  if (failure !== undefined) {
    if (serverError(error)?.severity === "ERROR") throw error;
    // The error of a ROLLBACK on a lost connection is less useful than that of the work.
    if (error !== failure.error) markLost(failure.error);
    throw failure.error;
  }
  // The connection was lost before COMMIT, or the last statement has failed.
  if (ending === undefined || error instanceof IdemError) {
    const failed = idemError(error);
    if (ending === undefined && failed.retryable) markLost(failed);
    throw failed;
  }
  if (!ending.commit) return ending.value;
  // COMMIT has failed, or an earlier statement whose error the callback has ignored.
  throw commitError(error);
}

/** postgres.js sends COMMIT without waiting for the result of the last statement. */
function committing<T>(client: PostgresClient, last: Statement<T>): Ended<T> {
  return { commit: true, value: sent(client, last) };
}

/** Sends a statement whose error is looked at later. */
function sent<T>(client: PostgresClient, statement: Statement<T>): Promise<T> {
  const result = execute(client, statement);
  result.catch(() => undefined);
  return result;
}

async function execute<T>(client: PostgresClient, statement: Statement<T>): Promise<T> {
  const query = client.unsafe(statement.text, [...statement.values], PREPARED);
  const rows = await query.then(undefined, (error: unknown) => {
    throw idemError(error);
  });
  return statement.decode(rows as Row[]);
}
