/** The results of claims and leases. Narrow them by `outcome`. */

import type { MessageId } from "./message-id.js";

/**
 * The result of a claim.
 *
 * - `claimed`: this transaction has claimed the message. Do the work, and commit.
 * - `duplicate`: the message was processed at `handledAt`. There is nothing to do.
 * - `in_progress`: another process is processing the message. Only with `wait: false`.
 * - `mismatch`: the message was processed at `handledAt` with another fingerprint.
 * - `expired`: the message is too old to be distinguished from a duplicate.
 */
export type ClaimOutcome =
  | { readonly outcome: "claimed" }
  | { readonly outcome: "duplicate"; readonly handledAt: Date | null }
  | { readonly outcome: "in_progress" }
  | { readonly outcome: "mismatch"; readonly handledAt: Date | null }
  | { readonly outcome: "expired" };

/** What proves a lease: the message and the fencing token. */
export interface LeaseToken {
  readonly id: MessageId;
  readonly destination: string;
  readonly token: bigint;
}

/** A lease that this process holds. */
export interface Held extends LeaseToken {
  /** The number of this attempt, beginning with 1. */
  readonly attempt: number;
  /** Why the previous attempt failed. */
  readonly lastError: string | null;
}

/**
 * The result of `acquire`.
 *
 * - `acquired`: do the work, then complete or release the message.
 * - `exhausted`: the message is leased, but no attempt is left. Bury it.
 * - `duplicate`: the message was processed. Acknowledge it.
 * - `in_progress`: another process holds the lease, or the message waits for a retry. Try again
 *   after `retryAfterMs`.
 * - `dead`: the message is a dead letter. Acknowledge it.
 */
export type LeaseOutcome =
  | ({ readonly outcome: "acquired" } & Held)
  | ({ readonly outcome: "exhausted" } & Held)
  | { readonly outcome: "duplicate" }
  | { readonly outcome: "in_progress"; readonly retryAfterMs: number | null }
  | { readonly outcome: "dead" };
