/** The statements of effects. */

import {
  RecordedEffect,
  textOfEffects,
  type Effects,
  type OutgoingMessage,
} from "../effects.js";
import type { MessageId } from "../message-id.js";
import { isBytes } from "../payload.js";
import { boolean, bytes, integer, jsonObject, nullable, text, time, uuids } from "./columns.js";
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

const RECORDED_EFFECT = {
  messageId: text("message_id"),
  ordinal: integer("ordinal"),
  topic: text("topic"),
  key: nullable(text("key")),
  type: nullable(text("type")),
  payload: bytes("payload"),
  contentType: text("content_type"),
  headers: nullable(jsonObject("headers")),
  traceparent: nullable(text("traceparent")),
  deliverAfter: nullable(time("deliver_after")),
  recordedAt: time("recorded_at"),
};

export function effects(id: MessageId, destination: string): Statement<RecordedEffect[]> {
  return new FunctionCall("idem_effects")
    .id(id)
    .text(destination)
    .rows(RECORDED_EFFECT, (row) => new RecordedEffect(row));
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
