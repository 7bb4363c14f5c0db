/** The results of claims and leases. Narrow them by `outcome`. */

import type { MessageId } from "./message-id.js";

/**
 * What to tell the broker.
 *
 * - `acknowledge`: the broker removes the message. After `claimed`, commit the work first.
 * - `redeliver`: the message is not processed yet. The broker delivers it again, after
 *   `retryAfterMs` if that is known. Also the settlement of `acquired`, until the message is
 *   completed.
 * - `reject`: the message can never be processed. Store it as a dead letter with `reject` of `Idem`
 *   (with `bury` of `Lease` if it is exhausted, and with the id null after `mismatch`, because the
 *   id is that of another message), then acknowledge it. A broker whose queue has no target for
 *   dead letters drops a message that is rejected.
 */
export type Settlement = "acknowledge" | "redeliver" | "reject";

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
  | { readonly outcome: "claimed"; readonly settlement: "acknowledge" }
  | {
      readonly outcome: "duplicate";
      readonly settlement: "acknowledge";
      readonly handledAt: Date | null;
    }
  | {
      readonly outcome: "in_progress";
      readonly settlement: "redeliver";
      readonly retryAfterMs: number | null;
    }
  | {
      readonly outcome: "mismatch";
      readonly settlement: "reject";
      readonly handledAt: Date | null;
    }
  | { readonly outcome: "expired"; readonly settlement: "reject" };

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
 * - `acquired`: commit, do the work, then complete or release the message. Acknowledge it after
 *   the completion only.
 * - `exhausted`: the message is leased, but no attempt is left. Bury it.
 * - `duplicate`: the message was processed.
 * - `in_progress`: another process holds the lease, or the message waits for a retry. Try again
 *   after `retryAfterMs`.
 * - `dead`: the message is a dead letter.
 */
export type LeaseOutcome =
  | ({ readonly outcome: "acquired"; readonly settlement: "redeliver" } & Held)
  | ({ readonly outcome: "exhausted"; readonly settlement: "reject" } & Held)
  | { readonly outcome: "duplicate" | "dead"; readonly settlement: "acknowledge" }
  | {
      readonly outcome: "in_progress";
      readonly settlement: "redeliver";
      readonly retryAfterMs: number | null;
    };
