/** Outgoing messages. */

import { textOfJson, type JsonObject } from "./json.js";
import { Content, isBytes, type Payload } from "./payload.js";

/** An outgoing message that results from processing a message. */
export interface Effect {
  readonly topic: string;
  /** A `Uint8Array` is sent as bytes. Any other value is sent as JSON. */
  readonly payload: Payload;
  /** Effects with the same key are delivered in order. */
  readonly key?: string | undefined;
  readonly type?: string | undefined;
  readonly headers?: JsonObject | undefined;
  /** A UUID. By default it is derived from the message and the position of the effect. */
  readonly messageId?: string | undefined;
  readonly contentType?: string | undefined;
  /** The earliest time of delivery. */
  readonly deliverAfter?: Date | undefined;
}

/** A message for `send`, which delivers as soon as the transaction commits. */
export type OutgoingMessage = Omit<Effect, "deliverAfter">;

/** An effect as it was recorded. */
export class RecordedEffect extends Content {
  declare readonly messageId: string;
  declare readonly ordinal: number;
  declare readonly topic: string;
  declare readonly key: string | null;
  declare readonly type: string | null;
  declare readonly contentType: string;
  declare readonly headers: JsonObject | null;
  declare readonly traceparent: string | null;
  declare readonly deliverAfter: Date | null;
  declare readonly recordedAt: Date;

  constructor(fields: Omit<RecordedEffect, "text" | "json">) {
    super(fields.payload);
    Object.assign(this, fields);
  }
}

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
function members(effect: Effect): Record<string, unknown> {
  const { payload } = effect;
  if (!isBytes(payload)) textOfJson(payload);
  return {
    topic: effect.topic,
    ...(isBytes(payload) ? { payload_base64: base64(payload) } : { payload }),
    key: effect.key,
    type: effect.type,
    headers: effect.headers,
    message_id: effect.messageId,
    content_type: effect.contentType,
    deliver_after: effect.deliverAfter?.toISOString(),
  };
}

function base64(bytes: Uint8Array): string {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString("base64");
}
