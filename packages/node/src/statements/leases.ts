/** The statements of leases. */

import { textOfEffects, type Effects } from "../effects.js";
import { UnexpectedResultError } from "../errors.js";
import type { MessageId } from "../message-id.js";
import type { LeaseOutcome, LeaseToken } from "../outcomes.js";
import {
  bigint, integer, milliseconds, nullable, oneOf, text, uuids, type Values,
} from "./columns.js";
import { ALLOWED } from "./commit.js";
import { command, FunctionCall, type Statement } from "./statement.js";

export interface LeaseOptions {
  /** The duration of the lease: 1 millisecond to 1 day. 30 seconds by default. */
  readonly leaseMs?: number | undefined;
}

export interface ReleaseOptions {
  /** Why the attempt failed. Without an error the attempt does not count. */
  readonly error?: string | undefined;
  /** Whether the message must not be retried. Needs `error`. */
  readonly final?: boolean | undefined;
}

export const LEASE = {
  outcome: oneOf("outcome", "acquired", "exhausted", "duplicate", "in_progress", "dead"),
  token: nullable(bigint("token")),
  attempt: nullable(integer("attempt")),
  retryAfterMs: nullable(milliseconds("retry_after")),
  lastError: nullable(text("last_error")),
};

export function leaseOutcome(
  id: MessageId,
  destination: string,
  row: Values<typeof LEASE>,
): LeaseOutcome {
  const { outcome, token, attempt, lastError, retryAfterMs } = row;
  switch (outcome) {
    case "acquired":
    case "exhausted": {
      if (token === null || attempt === null) {
        throw new UnexpectedResultError(`the outcome ${outcome} has no token or attempt`);
      }
      const held = { id, destination, token, attempt, lastError };
      if (outcome === "acquired") return { outcome, settlement: "redeliver", ...held };
      return { outcome, settlement: "reject", ...held };
    }
    case "duplicate":
    case "dead":
      return { outcome, settlement: "acknowledge" };
    case "in_progress":
      return { outcome, settlement: "redeliver", retryAfterMs };
  }
}

/** Limits how long the transaction waits for a lock. */
export const SHORT_LOCK_TIMEOUT = command(
  "SELECT set_config('lock_timeout', '100ms', true)",
  undefined,
);

/**
 * Completes, and allows COMMIT. One statement, so that the message is not completed if the
 * transaction of its work has ended.
 */
export function completeAndAllowCommit(lease: LeaseToken, effects: Effects): Statement<string[]> {
  return FunctionCall.ofLease("idem_complete", lease)
    .jsonText(textOfEffects(effects))
    .valueAnd(uuids, ALLOWED);
}
