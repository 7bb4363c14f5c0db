/** The functions of idem in the transaction of the user. */

import { DeadLetters } from "./dead-letters.js";
import type { Effects, OutgoingMessage, RecordedEffect } from "./effects.js";
import { leaseError } from "./errors.js";
import { executeOn, type Executor } from "./executors/index.js";
import { Inbox } from "./inbox.js";
import { Journal } from "./journal.js";
import type { Letter } from "./letter.js";
import type { MessageId } from "./message-id.js";
import type { ClaimOutcome, LeaseOutcome, LeaseToken } from "./outcomes.js";
import { runOn, type Run } from "./run.js";
import * as claims from "./statements/claims.js";
import * as effects from "./statements/effects.js";
import * as leases from "./statements/leases.js";

/**
 * Returns idem's functions on the connection of a transaction.
 *
 * The functions never begin, commit, roll back or retry. They fail with an `IdemError`.
 *
 * ```ts
 * await db.transaction(async (tx) => {
 *   if (!(await idem(tx).tryClaim(message.id, "billing.charge"))) return; // A duplicate.
 *   await tx.update(accounts).set({ paid: true });
 * });
 * // Now acknowledge the message.
 * ```
 *
 * @throws TypeError for a pool, because the claim would run on another connection than the work.
 */
export function idem(executor: Executor): Idem {
  return new Idem(executor);
}

/** The functions of idem on one connection. Create it with `idem`. */
export class Idem {
  readonly #run: Run;

  constructor(executor: Executor) {
    this.#run = runOn(executeOn(executor));
  }

  /** Claims a message, and returns the outcome. */
  async claim(
    id: MessageId,
    destination: string,
    options: claims.ClaimOptions = {},
  ): Promise<ClaimOutcome> {
    return this.#run(claims.claim(id, destination, options));
  }

  /** Claims a message. Returns true if this transaction has claimed it. False is a duplicate. */
  async tryClaim(id: MessageId, destination: string): Promise<boolean> {
    return this.#run(claims.tryClaim(id, destination));
  }

  /** Claims at most 100,000 messages. Returns one result for each id, by position. */
  async tryClaimBatch(ids: readonly MessageId[], destination: string): Promise<boolean[]> {
    return this.#run(claims.tryClaimBatch(ids, destination));
  }

  /** Claims a message and records its effects. Returns false for a duplicate. */
  async tryRecord(id: MessageId, destination: string, recorded: Effects): Promise<boolean> {
    return this.#run(effects.tryRecord(id, destination, recorded));
  }

  /** Returns whether a committed transaction or this one has claimed the message. */
  async isClaimed(id: MessageId, destination: string): Promise<boolean> {
    return this.#run(claims.isClaimed(id, destination));
  }

  /** Records effects of a message that this transaction has claimed. Returns their message ids. */
  async record(id: MessageId, destination: string, recorded: Effects): Promise<string[]> {
    return this.#run(effects.record(id, destination, recorded));
  }

  /** Returns the effects that the first execution of the message recorded, in order. */
  async effects(id: MessageId, destination: string): Promise<RecordedEffect[]> {
    return this.#run(effects.effects(id, destination));
  }

  /** Sends a message that does not result from another message. Returns its message id. */
  async send(message: OutgoingMessage): Promise<string> {
    return this.#run(effects.send(message));
  }

  /**
   * Leases a message for work outside the transaction. Commit, do the work, and then complete or
   * release the message with the token. `lease` does this with a pool, and renews the lease.
   */
  async acquire(
    id: MessageId,
    destination: string,
    options: leases.LeaseOptions = {},
  ): Promise<LeaseOutcome> {
    return this.#run(leases.acquire(id, destination, options));
  }

  /** Extends a lease: it ends `leaseMs` from now. */
  async extend(lease: LeaseToken, options: leases.LeaseOptions = {}): Promise<void> {
    await this.#run(leases.extend(lease, options), leaseError);
  }

  /** Turns a lease into the claim and records the effects. Returns their message ids. */
  async complete(lease: LeaseToken, recorded: Effects = []): Promise<string[]> {
    return this.#run(leases.complete(lease, recorded), leaseError);
  }

  /** Releases a lease. Returns the milliseconds until the next attempt, null if there is none. */
  async release(lease: LeaseToken, options: leases.ReleaseOptions = {}): Promise<number | null> {
    return this.#run(leases.release(lease, options), leaseError);
  }

  /** Stores a leased message of a broker as a dead letter. */
  async bury(lease: LeaseToken, letter: Letter): Promise<void> {
    await this.#run(leases.bury(lease, letter), leaseError);
  }

  /** The durable inbox: messages that are stored first and processed later. */
  get inbox(): Inbox {
    return new Inbox(this.#run);
  }

  get deadLetters(): DeadLetters {
    return new DeadLetters(this.#run);
  }

  /** The journal of external calls. */
  get journal(): Journal {
    return new Journal(this.#run);
  }
}
