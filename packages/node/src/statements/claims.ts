/** The statements of claims and of their effects. */

import { textOfEffects, type Effects } from "../effects.js";
import type { MessageId } from "../message-id.js";
import type { ClaimOutcome } from "../outcomes.js";
import { boolean, nullable, oneOf, time, uuids, type Values } from "./columns.js";
import { ALLOWED, FORBIDDEN } from "./commit.js";
import { FunctionCall, type Statement } from "./statement.js";

export interface ClaimOptions {
  /** Whether to wait for a concurrent claimer. True by default. */
  readonly wait?: boolean | undefined;
  /** 1 to 64 bytes, for example a hash of the payload. */
  readonly fingerprint?: Uint8Array | undefined;
  /** When the message was sent. `new Date` reads a text without an offset in local time. */
  readonly sentAt?: Date | undefined;
}

const CLAIM = {
  outcome: oneOf("outcome", "claimed", "duplicate", "in_progress", "mismatch", "expired"),
  handledAt: nullable(time("handled_at")),
};

export function claim(
  id: MessageId,
  destination: string,
  options: ClaimOptions,
): Statement<ClaimOutcome> {
  return claimCall(id, destination, options).row(CLAIM, claimOutcome);
}

/** Also forbids COMMIT until `idem_allow_commit`, so that only the caller can commit. */
export function claimAndForbidCommit(
  id: MessageId,
  destination: string,
  options: ClaimOptions,
): Statement<ClaimOutcome> {
  return claimCall(id, destination, options).row({ ...CLAIM, forbidden: FORBIDDEN }, claimOutcome);
}

/** The same without options. It costs less, and does not return when the message was handled. */
export function tryClaimAndForbidCommit(id: MessageId, destination: string): Statement<boolean> {
  return FunctionCall.of("idem_try_claim", id, destination).valueAnd(boolean, FORBIDDEN);
}

/**
 * Records effects, and allows COMMIT. One statement, so that COMMIT stays forbidden if the effects
 * are not recorded.
 */
export function recordAndAllowCommit(
  id: MessageId,
  destination: string,
  effects: Effects,
): Statement<string[]> {
  return FunctionCall.of("idem_record_effects", id, destination)
    .jsonText(textOfEffects(effects))
    .valueAnd(uuids, ALLOWED);
}

function claimCall(id: MessageId, destination: string, options: ClaimOptions): FunctionCall {
  return FunctionCall.of("idem_claim", id, destination)
    .option("wait", "boolean", options.wait)
    .option("fingerprint", "bytes", options.fingerprint)
    .option("sent_at", "time", options.sentAt);
}

function claimOutcome({ outcome, handledAt }: Values<typeof CLAIM>): ClaimOutcome {
  switch (outcome) {
    case "claimed":
      return { outcome, settlement: "acknowledge" };
    case "duplicate":
      return { outcome, settlement: "acknowledge", handledAt };
    case "in_progress":
      return { outcome, settlement: "redeliver", retryAfterMs: null };
    case "mismatch":
      return { outcome, settlement: "reject", handledAt };
    case "expired":
      return { outcome, settlement: "reject" };
  }
}
