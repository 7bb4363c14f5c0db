/** The statements of effects. */

import {
  RecordedEffect,
  textOfEffects,
  type Effects,
  type OutgoingMessage,
} from "../effects.js";
import type { JsonObject } from "../json.js";
import type { MessageId } from "../message-id.js";
import { isBytes } from "../payload.js";
import { boolean, bytes, integer, json, nullable, text, time, uuids } from "./columns.js";
import type { Column } from "./columns.js";
import { ALLOWED, allowCommit } from "./commit.js";
import { FunctionCall, type Statement } from "./statement.js";

export function record(
  id: MessageId,
  destination: string,
  effects: Effects,
): Statement<string[]> {
  return new FunctionCall("idem_record_effects")
    .id(id)
    .text(destination)
    .jsonText(textOfEffects(effects))
    .value(uuids);
}

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
  return new FunctionCall("idem_record_effects")
    .id(id)
    .text(destination)
    .jsonText(textOfEffects(effects))
    .valueAnd(uuids, ALLOWED);
}

export function tryRecord(
  id: MessageId,
  destination: string,
  effects: Effects,
): Statement<boolean> {
  return new FunctionCall("idem_try_record")
    .id(id)
    .text(destination)
    .jsonText(textOfEffects(effects))
    .value(boolean);
}

const MESSAGE_ID = text("message_id");
const ORDINAL = integer("ordinal");
const TOPIC = text("topic");
const KEY = nullable(text("key"));
const TYPE = nullable(text("type"));
const PAYLOAD = bytes("payload");
const CONTENT_TYPE = text("content_type");
const HEADERS = nullable(json("headers") as Column<JsonObject>);
const TRACEPARENT = nullable(text("traceparent"));
const DELIVER_AFTER = nullable(time("deliver_after"));
const RECORDED_AT = time("recorded_at");

export function effects(id: MessageId, destination: string): Statement<RecordedEffect[]> {
  const columns = [
    MESSAGE_ID, ORDINAL, TOPIC, KEY, TYPE, PAYLOAD, CONTENT_TYPE, HEADERS, TRACEPARENT,
    DELIVER_AFTER, RECORDED_AT,
  ];
  return new FunctionCall("idem_effects")
    .id(id)
    .text(destination)
    .rows(
      columns,
      (row) =>
        new RecordedEffect({
          messageId: row.get(MESSAGE_ID),
          ordinal: row.get(ORDINAL),
          topic: row.get(TOPIC),
          key: row.get(KEY),
          type: row.get(TYPE),
          payload: row.get(PAYLOAD),
          contentType: row.get(CONTENT_TYPE),
          headers: row.get(HEADERS),
          traceparent: row.get(TRACEPARENT),
          deliverAfter: row.get(DELIVER_AFTER),
          recordedAt: row.get(RECORDED_AT),
        }),
    );
}

export function replayEffects(id: MessageId, destination: string): Statement<number> {
  return new FunctionCall("idem_replay_effects").id(id).text(destination).value(integer);
}

export function send(message: OutgoingMessage): Statement<string> {
  const { topic, payload } = message;
  const call = isBytes(payload)
    ? new FunctionCall("idem_send_bytes").text(topic).bytes(payload)
    : new FunctionCall("idem_send").text(topic).json(payload);
  return call
    .option("key", "text", message.key)
    .option("type", "text", message.type)
    .option("headers", "json", message.headers)
    .option("message_id", "uuid", message.messageId)
    .option("content_type", "text", message.contentType)
    .value(text);
}
