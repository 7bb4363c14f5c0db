/** Columns of a result: an expression that every driver returns as text or bytes, and its value. */

import { UnexpectedResultError } from "../errors.js";
import type { JsonObject } from "../json.js";

export interface Column<T> {
  readonly sql: string;
  readonly decode: (value: unknown) => T;
}

/** The columns of a row, by the names of their values. */
export type Columns = Readonly<Record<string, Column<unknown>>>;

/** The values of a row with these columns. */
export type Values<C extends Columns> = {
  readonly [N in keyof C]: C[N] extends Column<infer T> ? T : never;
};

/** Returns the column that is null if the value is null. */
export function nullable<T>(column: Column<T>): Column<T | null> {
  return {
    sql: column.sql,
    decode: (value) => (value === null || value === undefined ? null : column.decode(value)),
  };
}

export function text(sql: string): Column<string> {
  return { sql: `CAST(${sql} AS text)`, decode: textOf };
}

/** A text that is one of these names. Another one is that of a newer extension. */
export function oneOf<N extends string>(sql: string, ...names: readonly N[]): Column<N> {
  const decode = (value: unknown) => {
    const found = names.find((name) => name === value);
    if (found !== undefined) return found;
    throw new UnexpectedResultError(`${sql} is ${textOf(value)}`);
  };
  return { sql: `CAST(${sql} AS text)`, decode };
}

/** Every driver reads a boolean, so it needs no cast, which would cost the server time. */
export function boolean(sql: string): Column<boolean> {
  return { sql, decode: booleanOf };
}

export function integer(sql: string): Column<number> {
  return { sql: `CAST(${sql} AS text)`, decode: (value) => Number(textOf(value)) };
}

export function bigint(sql: string): Column<bigint> {
  return { sql: `CAST(${sql} AS text)`, decode: (value) => BigInt(textOf(value)) };
}

export function json(sql: string): Column<unknown> {
  return { sql: `CAST(${sql} AS text)`, decode: (value) => JSON.parse(textOf(value)) as unknown };
}

export function jsonObject(sql: string): Column<JsonObject> {
  return json(sql) as Column<JsonObject>;
}

/** An array of booleans. */
export function booleans(sql: string): Column<boolean[]> {
  return { sql, decode: (value) => arrayOf(value).map(booleanOf) };
}

/** An array of UUIDs. */
export function uuids(sql: string): Column<string[]> {
  return { sql, decode: (value) => arrayOf(value).map(textOf) };
}

/** A time, cut to milliseconds. */
export function time(sql: string): Column<Date> {
  return {
    sql: `CAST(floor(extract(epoch FROM ${sql}) * 1000) AS text)`,
    decode: (value) => new Date(Number(textOf(value))),
  };
}

/** An interval in milliseconds. */
export function milliseconds(sql: string): Column<number> {
  return {
    sql: `CAST(extract(epoch FROM ${sql}) * 1000 AS text)`,
    decode: (value) => Number(textOf(value)),
  };
}

export function bytes(sql: string): Column<Uint8Array> {
  return {
    sql,
    decode(value) {
      if (value instanceof Uint8Array) return value;
      throw new UnexpectedResultError(`${sql} is no Uint8Array: the driver parses bytea otherwise`);
    },
  };
}

/** The result of a function that returns nothing. Prisma cannot read it without a cast. */
export function nothing(sql: string): Column<undefined> {
  return { sql: `CAST(${sql} AS text)`, decode: () => undefined };
}

function textOf(value: unknown): string {
  if (typeof value === "string") return value;
  throw new UnexpectedResultError(`expected a text, got a value of type ${typeof value}`);
}

function booleanOf(value: unknown): boolean {
  switch (value) {
    case true:
    case "t":
      return true;
    case false:
    case "f":
      return false;
    default:
      throw new UnexpectedResultError(`expected a boolean, got a value of type ${typeof value}`);
  }
}

/** A driver that does not know the type of an array returns its text, here without quotes. */
function arrayOf(value: unknown): unknown[] {
  if (Array.isArray(value)) return value;
  const elements = textOf(value).slice(1, -1);
  return elements === "" ? [] : elements.split(",");
}
