/** The statements of dead letters. */

import type { RejectedLetter } from "../letter.js";
import type { MessageId } from "../message-id.js";
import { bytesOf } from "../payload.js";
import { boolean, integer, nullable, text } from "./columns.js";
import { FunctionCall, type Statement } from "./statement.js";

/** Which dead letters to process at once. */
export interface Selection {
  /** A LIKE pattern for the last error. `%` by default. */
  readonly errorLike?: string | undefined;
  /** 1 to 10,000. 1,000 by default. */
  readonly maxMessages?: number | undefined;
}

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

export function requeue(id: MessageId, destination: string): Statement<boolean> {
  return new FunctionCall("idem_requeue").id(id).text(destination).value(boolean);
}

export function discard(id: MessageId, destination: string): Statement<boolean> {
  return new FunctionCall("idem_discard").id(id).text(destination).value(boolean);
}

export function forward(
  id: MessageId,
  destination: string,
  topic: string,
): Statement<string | null> {
  return new FunctionCall("idem_forward")
    .id(id)
    .text(destination)
    .text(topic)
    .value((sql) => nullable(text(sql)));
}

export function requeueAll(destination: string, selection: Selection): Statement<number> {
  return select(new FunctionCall("idem_requeue_all").text(destination), selection);
}

export function discardAll(destination: string, selection: Selection): Statement<number> {
  return select(new FunctionCall("idem_discard_all").text(destination), selection);
}

export function forwardAll(
  destination: string,
  topic: string,
  selection: Selection,
): Statement<number> {
  return select(new FunctionCall("idem_forward_all").text(destination).text(topic), selection);
}

function select(call: FunctionCall, selection: Selection): Statement<number> {
  return call
    .option("error_like", "text", selection.errorLike)
    .option("max_messages", "integer", selection.maxMessages)
    .value(integer);
}
