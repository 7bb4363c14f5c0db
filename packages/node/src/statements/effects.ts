/** The statements of effects. */

import { textOfEffects, type Effects } from "../effects.js";
import type { MessageId } from "../message-id.js";
import { uuids } from "./columns.js";
import { ALLOWED, allowCommit } from "./commit.js";
import { FunctionCall, type Statement } from "./statement.js";

/**
 * Records effects, if there are any, and allows COMMIT. One statement, so that COMMIT stays
 * forbidden if the effects are not recorded.
 */
export function recordAndAllowCommit(
  id: MessageId,
  destination: string,
  effects: Effects,
): Statement<string[]> {
  if (Array.isArray(effects) && effects.length === 0) return allowCommit([]);
  return FunctionCall.of("idem_record_effects", id, destination)
    .jsonText(textOfEffects(effects))
    .valueAnd(uuids, ALLOWED);
}
