/** Processes a message in a transaction of its own. */

import { repeat } from "./backoff.js";
import type { Effects } from "./effects.js";
import { idem } from "./idem.js";
import type { MessageId } from "./message-id.js";
import { checkOptions } from "./options.js";
import type { ClaimOutcome } from "./outcomes.js";
import { claimAndForbidCommit, tryClaimAndForbidCommit } from "./statements/claims.js";
import { recordAndAllowCommit, type ClaimOptions } from "./statements/claims.js";
import type { Statement } from "./statements/statement.js";
import { transactorOf } from "./transactions/index.js";
import { isRepeatable } from "./transactions/lost.js";
import type { Beginning, Client, ClientOf, Ending, Isolation, Pool } from "./transactions/pool.js";

/** The message to process, and how its claim is made. */
export interface ProcessMessage extends ClaimOptions {
  readonly id: MessageId;
  readonly destination: string;
}

export interface ProcessOptions {
  /** Rolls back when it aborts before COMMIT. The handler must end by itself. */
  readonly signal?: AbortSignal | undefined;
  /**
   * How often the transaction is repeated after 40001, 40P01 or the loss of its connection before
   * COMMIT was sent. 0 by default.
   */
  readonly retries?: number | undefined;
  /** The default of the role or the database by default. */
  readonly isolation?: Isolation | undefined;
}

/** The result of `process`. `settlement` is what to tell the broker now. */
export type Processed =
  | {
      readonly outcome: "processed";
      readonly settlement: "acknowledge";
      readonly messageIds: string[];
    }
  | Exclude<ClaimOutcome, { outcome: "claimed" }>;

/** Does the work of a message in its transaction, and returns the effects to record. */
export type Handler<C> = (client: C) => Promise<Effects | undefined> | Promise<void>;

/**
 * Claims a message, executes the handler, records the effects that the handler returns, and
 * commits, all in one transaction. The handler is not executed for a duplicate. The handler cannot
 * commit: its COMMIT fails with 2D000.
 *
 * ```ts
 * const message = { id, destination: "billing.charge" };
 * const { settlement } = await process(pool, message, async (client) => {
 *   await client.query("UPDATE account SET paid = true WHERE id = $1", [account]);
 *   return { topic: "receipts", payload: { account } };
 * });
 * ```
 *
 * An error of the handler rolls back and is thrown as it is. The error of a statement rolls back
 * also if the handler has ignored it. If the reply to COMMIT is missing, this function fails with a
 * `CommitUnknownError`. Behind a pooler that removes comments from statements, the first
 * transaction without effects is rolled back and repeated.
 *
 * @param pool a `Pool` of node-postgres or the `sql` of postgres.js.
 */
export async function process<P extends Pool>(
  pool: P,
  message: ProcessMessage,
  handler: Handler<ClientOf<P>>,
  options: ProcessOptions = {},
): Promise<Processed> {
  checkOptions("process", options, "signal", "retries", "isolation");
  const transactor = transactorOf(pool);
  const beginning: Beginning<ClaimOutcome | boolean> = {
    first: claimStatement(message),
    isolation: options.isolation ?? "default",
  };
  const attempt = async () => {
    options.signal?.throwIfAborted();
    return transactor.transact(beginning, (client, claimed) =>
      work(message, claimed, client, handler, options.signal),
    );
  };
  return repeat(attempt, options.retries ?? 0, isRepeatable);
}

/** A claim without options is cheaper, because it returns only whether it has succeeded. */
function claimStatement(message: ProcessMessage): Statement<ClaimOutcome | boolean> {
  const { id, destination, wait, fingerprint, sentAt } = message;
  const hasOptions = wait !== undefined || fingerprint !== undefined || sentAt !== undefined;
  return hasOptions
    ? claimAndForbidCommit(id, destination, { wait, fingerprint, sentAt })
    : tryClaimAndForbidCommit(id, destination);
}

async function work<C>(
  message: ProcessMessage,
  claimed: ClaimOutcome | boolean,
  client: C,
  handler: Handler<C>,
  signal: AbortSignal | undefined,
): Promise<Ending<Processed>> {
  if (claimed !== true) {
    const on = idem(client as Client);
    const claim = claimed === false ? await on.claim(message.id, message.destination) : claimed;
    if (claim.outcome !== "claimed") return { commit: false, value: claim };
  }
  signal?.throwIfAborted();
  const effects = (await handler(client)) ?? [];
  signal?.throwIfAborted();
  if (Array.isArray(effects) && effects.length === 0) return { commit: true, value: processed([]) };
  const last = recordAndAllowCommit(message.id, message.destination, effects);
  return { commit: true, last: { ...last, decode: (rows) => processed(last.decode(rows)) } };
}

function processed(messageIds: string[]): Processed {
  return { outcome: "processed", settlement: "acknowledge", messageIds };
}
