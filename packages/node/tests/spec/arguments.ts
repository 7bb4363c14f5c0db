/** Converts arguments of SQL to those of the methods. */

import type { Effect, JsonObject, MessageId } from "../../src/index.js";
import { isObject, Json } from "./cases.js";

/** The statement has no method, or its arguments have none. It is executed as SQL. */
export class NoMethod extends Error {}

/** Converts one argument. Undefined is an argument that is left out. */
export type Reader<T> = (value: unknown) => T;

export const id: Reader<MessageId> = (value) => string(value);

export const string: Reader<string> = (value) => {
  if (typeof value === "string") return value;
  throw new NoMethod();
};

export const number: Reader<number> = (value) => {
  if (typeof value === "number") return value;
  throw new NoMethod();
};

export const boolean: Reader<boolean> = (value) => {
  if (typeof value === "boolean") return value;
  throw new NoMethod();
};

export const token: Reader<bigint> = (value) => BigInt(number(value));

export const bytes: Reader<Uint8Array> = (value) => {
  if (value instanceof Uint8Array) return value;
  throw new NoMethod();
};

export const json: Reader<unknown> = (value) => {
  if (value instanceof Json) return value.value;
  throw new NoMethod();
};

export const object: Reader<JsonObject> = (value) => {
  const found = json(value);
  if (isObject(found)) return found;
  throw new NoMethod();
};

export const time: Reader<Date> = (value) => {
  const found = new Date(string(value));
  const hasZone = /(Z|[+-]\d\d:\d\d)$/.test(string(value));
  if (Number.isNaN(found.getTime()) || !hasZone) throw new NoMethod();
  return found;
};

export const strings: Reader<string[]> = (value) => {
  if (Array.isArray(value)) return value.map(string);
  throw new NoMethod();
};

const UNITS: Readonly<Record<string, number>> = {
  millisecond: 1,
  second: 1000,
  minute: 60_000,
  hour: 3_600_000,
  day: 86_400_000,
};

export const interval: Reader<number> = (value) => {
  const [, amount, unit = ""] = /^(\d+) (\w+?)s?$/.exec(string(value)) ?? [];
  const milliseconds = UNITS[unit];
  if (milliseconds === undefined) throw new NoMethod();
  return Number(amount) * milliseconds;
};

/** An argument that has a default, and for which the server rejects NULL. */
export function optional<T>(reader: Reader<T>): Reader<T | undefined> {
  return (value) => (value === undefined ? undefined : reader(value));
}

/** An argument whose default is NULL. */
export function omittable<T>(reader: Reader<T>): Reader<T | undefined> {
  return (value) => (value === undefined || value === null ? undefined : reader(value));
}

export function nullable<T>(reader: Reader<T>): Reader<T | null> {
  return (value) => (value === null ? null : reader(value));
}

/** Members of an effect in SQL, and the members of `Effect`. */
const MEMBERS: Readonly<Record<string, [keyof Effect, Reader<unknown>]>> = {
  topic: ["topic", string],
  payload: ["payload", (value) => value],
  payload_base64: ["payload", base64],
  key: ["key", string],
  type: ["type", string],
  headers: ["headers", plainObject],
  message_id: ["messageId", string],
  content_type: ["contentType", string],
  deliver_after: ["deliverAfter", time],
};

export const effects: Reader<Effect | Effect[]> = (value) => {
  const found = json(value);
  return Array.isArray(found) ? found.map(effect) : effect(found);
};

function effect(value: unknown): Effect {
  if (!isObject(value)) throw new NoMethod();
  const converted: Record<string, unknown> = {};
  for (const [name, member] of Object.entries(value)) {
    const [property, reader] = MEMBERS[name] ?? [];
    if (property === undefined || reader === undefined) throw new NoMethod();
    if (property in converted) throw new NoMethod();
    converted[property] = reader(member);
  }
  if (!("topic" in converted && "payload" in converted)) throw new NoMethod();
  return converted as unknown as Effect;
}

function base64(value: unknown): Uint8Array {
  const decoded = Buffer.from(string(value), "base64");
  if (decoded.toString("base64") !== value) throw new NoMethod();
  return decoded;
}

function plainObject(value: unknown): JsonObject {
  if (isObject(value)) return value;
  throw new NoMethod();
}
