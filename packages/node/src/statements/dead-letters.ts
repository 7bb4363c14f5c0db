/** The statements of dead letters. */

import type { RejectedLetter } from "../letter.js";
import type { MessageId } from "../message-id.js";
import { bytesOf } from "../payload.js";
import { boolean } from "./columns.js";
import { FunctionCall, type Statement } from "./statement.js";

export function reject(
  id: MessageId | null,
  destination: string,
  letter: RejectedLetter,
): Statement<boolean> {
  return new FunctionCall("idem_reject")
    .idOrNull(id)
    .text(destination)
    .bytes(bytesOf(letter.payload))
    .text(letter.error)
    .option("headers", "json", letter.headers)
    .option("key", "text", letter.key)
    .option("type", "text", letter.type)
    .option("content_type", "text", letter.contentType)
    .option("source", "text", letter.source)
    .value(boolean);
}
