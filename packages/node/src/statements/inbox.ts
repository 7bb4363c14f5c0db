/** The statements of durable messages. */

import { InboxMessage, type NextOptions, type ReceivedMessage } from "../inbox-message.js";
import { isBytes } from "../payload.js";
import { bigint, boolean, bytes, integer, jsonObject, nullable, text, time } from "./columns.js";
import { FunctionCall, type Statement } from "./statement.js";

export function receive(message: ReceivedMessage): Statement<boolean> {
  const { id, destination, payload } = message;
  const call = isBytes(payload)
    ? new FunctionCall("idem_receive_bytes").id(id).text(destination).bytes(payload)
    : new FunctionCall("idem_receive").id(id).text(destination).json(payload);
  return call
    .option("headers", "json", message.headers)
    .option("key", "text", message.key)
    .option("deliver_after", "time", message.deliverAfter)
    .option("type", "text", message.type)
    .option("content_type", "text", message.contentType)
    .value(boolean);
}

const INBOX_MESSAGE = {
  token: bigint("token"),
  seq: bigint("seq"),
  id: text("id"),
  key: nullable(text("key")),
  type: nullable(text("type")),
  payload: bytes("payload"),
  contentType: nullable(text("content_type")),
  headers: nullable(jsonObject("headers")),
  traceparent: nullable(text("traceparent")),
  attempt: integer("attempt"),
  receivedAt: time("received_at"),
  lastError: nullable(text("last_error")),
  leaseExpired: boolean("lease_expired"),
};

export function next(destination: string, options: NextOptions): Statement<InboxMessage[]> {
  return new FunctionCall("idem_next")
    .text(destination)
    .option("max_messages", "integer", options.maxMessages)
    .option("lease", "milliseconds", options.leaseMs)
    .option("max_bytes", "integer", options.maxBytes)
    .rows(INBOX_MESSAGE, (row) => new InboxMessage({ destination, ...row }));
}

export function nextWait(destination: string, timeoutMs: number | undefined): Statement<boolean> {
  return new FunctionCall("idem_next_wait")
    .text(destination)
    .option("timeout_ms", "integer", timeoutMs)
    .value(boolean);
}
