/** The functions of idem in the transaction of the user. */

import { RECORDED_EFFECT, SENT, textOfEffects } from "./effects.js";
import type { Effects, OutgoingMessage, RecordedEffect } from "./effects.js";
import { leaseError, storable } from "./errors.js";
import type { Run } from "./executors/execute.js";
import { runOn, type Executor } from "./executors/index.js";
import { Inbox } from "./inbox.js";
import { Journal } from "./journal.js";
import { LETTER, type Letter, type RejectedLetter } from "./letter.js";
import { textOfId, type MessageId } from "./message-id.js";
import type { ClaimOutcome, LeaseOutcome, LeaseToken } from "./outcomes.js";
import { checkOptions } from "./options.js";
import { bytesOf, Content, isBytes } from "./payload.js";
import { claim, type ClaimOptions } from "./statements/claims.js";
import {
  boolean, booleans, milliseconds, nothing, nullable, text, uuids,
} from "./statements/columns.js";
import { LEASE, leaseOutcome } from "./statements/leases.js";
import type { LeaseOptions, ReleaseOptions } from "./statements/leases.js";
import { FunctionCall } from "./statements/statement.js";

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
    this.#run = runOn(executor);
  }

  /** Claims a message, and returns the outcome. */
  async claim(
    id: MessageId,
    destination: string,
    options: ClaimOptions = {},
  ): Promise<ClaimOutcome> {
    checkOptions("claim", options, "wait", "fingerprint", "sentAt");
    return this.#run(claim(id, destination, options));
  }

  /** Claims a message. Returns true if this transaction has claimed it. False is a duplicate. */
  async tryClaim(id: MessageId, destination: string): Promise<boolean> {
    return this.#run(FunctionCall.of("idem_try_claim", id, destination).value(boolean));
  }

  /** Claims at most 100,000 messages. Returns one result for each id, by position. */
  async tryClaimBatch(ids: readonly MessageId[], destination: string): Promise<boolean[]> {
    const call = new FunctionCall("idem_try_claim_batch").texts(ids.map(textOfId));
    return this.#run(call.text(destination).value(booleans));
  }

  /** Claims a message and records its effects. Returns false for a duplicate. */
  async tryRecord(id: MessageId, destination: string, recorded: Effects): Promise<boolean> {
    const call = FunctionCall.of("idem_try_record", id, destination);
    return this.#run(call.jsonText(textOfEffects(recorded)).value(boolean));
  }

  /** Returns whether a committed transaction or this one has claimed the message. */
  async isClaimed(id: MessageId, destination: string): Promise<boolean> {
    return this.#run(FunctionCall.of("idem_is_claimed", id, destination).value(boolean));
  }

  /** Records effects of a message that this transaction has claimed. Returns their message ids. */
  async record(id: MessageId, destination: string, recorded: Effects): Promise<string[]> {
    const call = FunctionCall.of("idem_record_effects", id, destination);
    return this.#run(call.jsonText(textOfEffects(recorded)).value(uuids));
  }

  /** Returns the effects that the first execution of the message recorded, in order. */
  async effects(id: MessageId, destination: string): Promise<RecordedEffect[]> {
    const call = FunctionCall.of("idem_effects", id, destination);
    return this.#run(call.rows(RECORDED_EFFECT, (row) => Content.with(row)));
  }

  /** Sends a message that does not result from another message. Returns its message id. */
  async send(message: OutgoingMessage): Promise<string> {
    checkOptions("send", message, ...SENT);
    const { topic, payload, messageId } = message;
    const call = new FunctionCall(isBytes(payload) ? "idem_send_bytes" : "idem_send");
    call.text(topic).payload(payload).content(message).option("message_id", "uuid", messageId);
    return this.#run(call.value(text));
  }

  /**
   * Leases a message for work outside the transaction. Commit, do the work, and then complete or
   * release the message with the token. `lease` does this with a pool, and renews the lease.
   */
  async acquire(
    id: MessageId,
    destination: string,
    options: LeaseOptions = {},
  ): Promise<LeaseOutcome> {
    checkOptions("acquire", options, "leaseMs");
    const call = FunctionCall.of("idem_acquire", id, destination);
    call.option("lease", "milliseconds", options.leaseMs);
    return this.#run(call.row(LEASE, (row) => leaseOutcome(id, destination, row)));
  }

  /** Extends a lease: it ends `leaseMs` from now. */
  async extend(lease: LeaseToken, options: LeaseOptions = {}): Promise<void> {
    checkOptions("extend", options, "leaseMs");
    const call = FunctionCall.ofLease("idem_extend", lease);
    call.option("lease", "milliseconds", options.leaseMs);
    await this.#run(call.value(nothing), leaseError);
  }

  /** Turns a lease into the claim and records the effects. Returns their message ids. */
  async complete(lease: LeaseToken, recorded: Effects = []): Promise<string[]> {
    const call = FunctionCall.ofLease("idem_complete", lease);
    return this.#run(call.jsonText(textOfEffects(recorded)).value(uuids), leaseError);
  }

  /** Releases a lease. Returns the milliseconds until the next attempt, null if there is none. */
  async release(lease: LeaseToken, options: ReleaseOptions = {}): Promise<number | null> {
    checkOptions("release", options, "error", "final");
    const call = FunctionCall.ofLease("idem_release", lease);
    const error = options.error === undefined ? undefined : storable(options.error);
    call.option("error", "text", error).option("final", "boolean", options.final);
    return this.#run(call.value((sql) => nullable(milliseconds(sql))), leaseError);
  }

  /** Stores a leased message of a broker as a dead letter. */
  async bury(lease: LeaseToken, letter: Letter): Promise<void> {
    checkOptions("bury", letter, ...LETTER);
    const call = FunctionCall.ofLease("idem_bury", lease).bytes(bytesOf(letter.payload));
    await this.#run(call.text(storable(letter.error)).content(letter).value(nothing), leaseError);
  }

  /**
   * Stores a message of a broker that is not leased as a dead letter. Returns false if it is a dead
   * letter already, or was processed. With the id null, the key is a hash of the message.
   */
  async reject(
    id: MessageId | null,
    destination: string,
    letter: RejectedLetter,
  ): Promise<boolean> {
    checkOptions("reject", letter, ...LETTER, "source");
    const call = new FunctionCall("idem_reject").idOrNull(id).text(destination);
    call.bytes(bytesOf(letter.payload)).text(storable(letter.error)).content(letter);
    return this.#run(call.option("source", "text", letter.source).value(boolean));
  }

  /** The durable inbox: messages that are stored first and processed later. */
  get inbox(): Inbox {
    return new Inbox(this.#run);
  }

  /** The journal of external calls. */
  get journal(): Journal {
    return new Journal(this.#run);
  }
}
