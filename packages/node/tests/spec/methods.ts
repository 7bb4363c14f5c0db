/** The method for each function of SQL. */

import type { Idem, Letter } from "../../src/index.js";
import type { Properties } from "../../src/payload.js";
import * as read from "./arguments.js";
import type { Reader } from "./arguments.js";

/** The arguments of a function, by name. */
type Arguments = Readonly<Record<string, unknown>>;

export interface Method {
  /** The parameters of the function in SQL, in order. */
  readonly parameters: readonly string[];
  /** Reads the arguments, and returns the request. Throws `NoMethod` before anything is sent. */
  readonly prepare: (values: Arguments) => (on: Idem) => Promise<unknown>;
}

function method<R extends Readonly<Record<string, Reader<unknown>>>>(
  readers: R,
  call: (on: Idem, values: { [N in keyof R]: ReturnType<R[N]> }) => Promise<unknown>,
): Method {
  return {
    parameters: Object.keys(readers),
    prepare(values) {
      const entries = Object.entries(readers).map(([name, reader]) => [name, reader(values[name])]);
      const converted = Object.fromEntries(entries) as { [N in keyof R]: ReturnType<R[N]> };
      return (on) => call(on, converted);
    },
  };
}

const message = { id: read.id, destination: read.string };
const leased = { ...message, token: read.token };
const step = { ...message, step: read.string };
const content = {
  headers: read.omittable(read.object),
  key: read.omittable(read.string),
  type: read.omittable(read.string),
  content_type: read.omittable(read.string),
};
const claim = {
  ...message,
  wait: read.optional(read.boolean),
  fingerprint: read.omittable(read.bytes),
  sent_at: read.omittable(read.time),
};
const received = {
  headers: content.headers,
  key: content.key,
  deliver_after: read.omittable(read.time),
  type: content.type,
  content_type: content.content_type,
};
const sent = {
  key: content.key,
  type: content.type,
  headers: content.headers,
  message_id: read.omittable(read.string),
  content_type: content.content_type,
};

type Content = { readonly [N in keyof typeof content]: ReturnType<(typeof content)[N]> };

function propertiesOf({ headers, key, type, content_type: contentType }: Content): Properties {
  return { headers, key, type, contentType };
}

function letterOf(values: Content & { payload: Uint8Array; error: string }): Letter {
  return { payload: values.payload, error: values.error, ...propertiesOf(values) };
}

export const METHODS: Readonly<Record<string, Method>> = {
  idem_claim: method(claim, (on, v) =>
    on.claim(v.id, v.destination, {
      wait: v.wait,
      fingerprint: v.fingerprint,
      sentAt: v.sent_at,
    }),
  ),
  idem_try_claim: method(message, (on, v) => on.tryClaim(v.id, v.destination)),
  idem_try_claim_batch: method({ ids: read.strings, destination: read.string }, (on, v) =>
    on.tryClaimBatch(v.ids, v.destination),
  ),
  idem_is_claimed: method(message, (on, v) => on.isClaimed(v.id, v.destination)),
  idem_try_record: method({ ...message, effects: read.effects }, (on, v) =>
    on.tryRecord(v.id, v.destination, v.effects),
  ),
  idem_record_effects: method({ ...message, effects: read.effects }, (on, v) =>
    on.record(v.id, v.destination, v.effects),
  ),
  idem_effects: method(message, (on, v) => on.effects(v.id, v.destination)),
  idem_send: method({ topic: read.string, payload: read.json, ...sent }, (on, v) =>
    on.send({
      topic: v.topic,
      payload: v.payload,
      messageId: v.message_id,
      ...propertiesOf(v),
    }),
  ),
  idem_send_bytes: method({ topic: read.string, payload: read.bytes, ...sent }, (on, v) =>
    on.send({
      topic: v.topic,
      payload: v.payload,
      messageId: v.message_id,
      ...propertiesOf(v),
    }),
  ),
  idem_acquire: method({ ...message, lease: read.optional(read.interval) }, (on, v) =>
    on.acquire(v.id, v.destination, { leaseMs: v.lease }),
  ),
  idem_extend: method({ ...leased, lease: read.optional(read.interval) }, (on, v) =>
    on.extend(v, { leaseMs: v.lease }),
  ),
  idem_complete: method({ ...leased, effects: read.optional(read.effects) }, (on, v) =>
    on.complete(v, v.effects),
  ),
  idem_release: method(
    { ...leased, error: read.omittable(read.string), final: read.optional(read.boolean) },
    (on, v) => on.release(v, { error: v.error, final: v.final }),
  ),
  idem_bury: method(
    { ...leased, payload: read.bytes, error: read.string, ...content },
    (on, v) => on.bury(v, letterOf(v)),
  ),
  idem_reject: method(
    {
      id: read.nullable(read.id),
      destination: read.string,
      payload: read.bytes,
      error: read.string,
      ...content,
      source: read.omittable(read.string),
    },
    (on, v) => on.reject(v.id, v.destination, { ...letterOf(v), source: v.source }),
  ),
  idem_receive: method({ ...message, payload: read.json, ...received }, (on, v) =>
    on.inbox.receive({
      id: v.id,
      destination: v.destination,
      payload: v.payload,
      deliverAfter: v.deliver_after,
      ...propertiesOf(v),
    }),
  ),
  idem_receive_bytes: method({ ...message, payload: read.bytes, ...received }, (on, v) =>
    on.inbox.receive({
      id: v.id,
      destination: v.destination,
      payload: v.payload,
      deliverAfter: v.deliver_after,
      ...propertiesOf(v),
    }),
  ),
  idem_next: method(
    {
      destination: read.string,
      max_messages: read.optional(read.number),
      lease: read.optional(read.interval),
      max_bytes: read.optional(read.number),
    },
    (on, v) =>
      on.inbox.next(v.destination, {
        maxMessages: v.max_messages,
        leaseMs: v.lease,
        maxBytes: v.max_bytes,
      }),
  ),
  idem_next_wait: method(
    { destination: read.string, timeout_ms: read.optional(read.number) },
    (on, v) => on.inbox.wait(v.destination, v.timeout_ms),
  ),
  idem_begin_call: method(
    { ...step, request: read.omittable(read.json), token: read.omittable(read.token) },
    (on, v) => on.journal.beginCall(v, { request: v.request, token: v.token }),
  ),
  idem_finish_call: method({ ...step, response: read.omittable(read.json) }, (on, v) =>
    on.journal.finishCall(v, v.response),
  ),
  idem_fail_call: method(
    { ...step, error: read.string, retryable: read.optional(read.boolean) },
    (on, v) => on.journal.failCall(v, v.error, { retryable: v.retryable ?? true }),
  ),
  idem_calls: method(message, (on, v) => on.journal.calls(v.id, v.destination)),
};
