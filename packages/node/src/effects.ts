/** Outgoing messages. */

import { textOfJson } from "./json.js";
import { checkOptions } from "./options.js";
import { bufferOf, isBytes, PROPERTIES } from "./payload.js";
import type { Content, Payload, Properties } from "./payload.js";
import {
  bytes, integer, jsonObject, nullable, text, time, type Values,
} from "./statements/columns.js";

/** An outgoing message that results from processing a message. */
export interface Effect extends Properties {
  readonly topic: string;
  /** A `Uint8Array` is sent as bytes. Any other value is sent as JSON. */
  readonly payload: Payload;
  /** A UUID. By default it is derived from the message and the position of the effect. */
  readonly messageId?: string | undefined;
  /** The earliest time of delivery. `new Date` reads a text without an offset in local time. */
  readonly deliverAfter?: Date | undefined;
}

/** A message for `send`, which delivers as soon as the transaction commits. */
export type OutgoingMessage = Omit<Effect, "deliverAfter">;

/** The members of `OutgoingMessage`. */
export const SENT = ["topic", "payload", "messageId", ...PROPERTIES] as const;

/** An effect as it was recorded. */
export type RecordedEffect = Content & Values<typeof RECORDED_EFFECT>;

export const RECORDED_EFFECT = {
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

/** One effect or several. */
export type Effects = Effect | readonly Effect[];

/** Returns the effects as the text of a JSON array. */
export function textOfEffects(effects: Effects): string {
  const list: readonly Effect[] = isList(effects) ? effects : [effects];
  return textOfJson(list.map(members));
}

function isList(effects: Effects): effects is readonly Effect[] {
  return Array.isArray(effects);
}

/** `JSON.stringify` leaves out the members that are undefined. */
function members(effect: unknown): Record<string, unknown> {
  if (!isEffect(effect)) {
    throw new TypeError(`an effect is an object with topic and payload, not ${String(effect)}`);
  }
  checkOptions("an effect", effect, ...SENT, "deliverAfter");
  const { payload } = effect;
  if (!isBytes(payload)) textOfJson(payload);
  return {
    topic: effect.topic,
    ...(isBytes(payload) ? { payload_base64: bufferOf(payload).toString("base64") } : { payload }),
    key: effect.key,
    type: effect.type,
    headers: effect.headers,
    message_id: effect.messageId,
    content_type: effect.contentType,
    deliver_after: effect.deliverAfter?.toISOString(),
  };
}

function isEffect(effect: unknown): effect is Effect {
  return typeof effect === "object" && effect !== null && "topic" in effect;
}
