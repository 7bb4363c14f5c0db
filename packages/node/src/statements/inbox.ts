/** The statements of durable messages. */

import { InboxMessage, type NextOptions, type ReceivedMessage } from "../inbox-message.js";
import type { JsonObject } from "../json.js";
import { isBytes } from "../payload.js";
import { bigint, boolean, bytes, integer, json, nullable, text, time } from "./columns.js";
import type { Column } from "./columns.js";
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

const TOKEN = bigint("token");
const SEQ = bigint("seq");
const ID = text("id");
const KEY = nullable(text("key"));
const TYPE = nullable(text("type"));
const PAYLOAD = bytes("payload");
const CONTENT_TYPE = nullable(text("content_type"));
const HEADERS = nullable(json("headers") as Column<JsonObject>);
const TRACEPARENT = nullable(text("traceparent"));
const ATTEMPT = integer("attempt");
const RECEIVED_AT = time("received_at");
const LAST_ERROR = nullable(text("last_error"));
const LEASE_EXPIRED = boolean("lease_expired");

export function next(destination: string, options: NextOptions): Statement<InboxMessage[]> {
  const columns = [
    TOKEN, SEQ, ID, KEY, TYPE, PAYLOAD, CONTENT_TYPE, HEADERS, TRACEPARENT, ATTEMPT, RECEIVED_AT,
    LAST_ERROR, LEASE_EXPIRED,
  ];
  return new FunctionCall("idem_next")
    .text(destination)
    .option("max_messages", "integer", options.maxMessages)
    .option("lease", "milliseconds", options.leaseMs)
    .option("max_bytes", "integer", options.maxBytes)
    .rows(
      columns,
      (row) =>
        new InboxMessage({
          destination,
          token: row.get(TOKEN),
          seq: row.get(SEQ),
          id: row.get(ID),
          key: row.get(KEY),
          type: row.get(TYPE),
          payload: row.get(PAYLOAD),
          contentType: row.get(CONTENT_TYPE),
          headers: row.get(HEADERS),
          traceparent: row.get(TRACEPARENT),
          attempt: row.get(ATTEMPT),
          receivedAt: row.get(RECEIVED_AT),
          lastError: row.get(LAST_ERROR),
          leaseExpired: row.get(LEASE_EXPIRED),
        }),
    );
}

export function nextWait(destination: string, timeoutMs: number | undefined): Statement<boolean> {
  return new FunctionCall("idem_next_wait")
    .text(destination)
    .option("timeout_ms", "integer", timeoutMs)
    .value(boolean);
}
