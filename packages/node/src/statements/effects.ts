/** The statements of effects. */

import { textOfEffects, type Effects } from "../effects.js";
import type { MessageId } from "../message-id.js";
import { uuids } from "./columns.js";
import { ALLOWED } from "./commit.js";
import { FunctionCall, type Statement } from "./statement.js";

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
