/**
 * A statement without a driver: its text with the parameters $1, $2…, and what its rows mean.
 *
 * Parameters are texts, bytes and null, each with a cast. Columns are texts, bytes, booleans and
 * null, and arrays of UUIDs and booleans. So the settings of a driver for JSON, times and bigint
 * make no difference. Columns are named c1, c2…, which no driver changes to camel case.
 */

import { UnexpectedResultError } from "../errors.js";
import { textOfId, type MessageId } from "../message-id.js";
import { textOfJson } from "../json.js";
import type { LeaseToken } from "../outcomes.js";
import { isBytes, type Payload, type Properties } from "../payload.js";
import type { Column, Columns, Values } from "./columns.js";

/** A value of a parameter. */
export type Parameter = string | Uint8Array | null;

/** A row as a driver returns it. */
export type Row = Readonly<Record<string, unknown>>;

export interface Statement<T> {
  readonly text: string;
  readonly values: readonly Parameter[];
  readonly decode: (rows: readonly Row[]) => T;
}

/** Returns a statement without parameters, whose result is this value. */
export function command<T>(text: string, value: T): Statement<T> {
  return { text, values: [], decode: () => value };
}

/** A call of a function. An argument that is undefined is left out, so that its default applies. */
export class FunctionCall {
  readonly #name: string;
  readonly #arguments: string[] = [];
  readonly #values: Parameter[] = [];

  constructor(name: string) {
    this.#name = name;
  }

  /** Returns the call of a function whose first arguments are a message and its consumer. */
  static of(name: string, id: MessageId, destination: string): FunctionCall {
    return new FunctionCall(name).id(id).text(destination);
  }

  static ofLease(name: string, { id, destination, token }: LeaseToken): FunctionCall {
    return FunctionCall.of(name, id, destination).bigint(token);
  }

  id(value: MessageId): this {
    return this.#add("text", textOfId(value));
  }

  idOrNull(value: MessageId | null): this {
    return this.#add("text", value === null ? null : textOfId(value));
  }

  text(value: string): this {
    return this.#add("text", value);
  }

  bytes(value: Uint8Array): this {
    return this.#add("bytea", value);
  }

  bigint(value: bigint): this {
    return this.#add("bigint", value.toString());
  }

  payload(value: Payload): this {
    return isBytes(value) ? this.bytes(value) : this.jsonText(textOfJson(value));
  }

  jsonText(value: string): this {
    return this.#add("jsonb", value);
  }

  texts(values: readonly string[]): this {
    return this.#add("text[]", arrayLiteral(values));
  }

  /** Adds an argument by its name, unless the value is undefined. */
  option<T extends keyof Encodings>(
    name: string,
    type: T,
    value: Parameters<Encodings[T]["encode"]>[0] | undefined,
  ): this {
    if (value === undefined) return this;
    const { sql, encode } = ENCODINGS[type];
    return this.#add(sql, (encode as (value: unknown) => Parameter)(value), `${name} => `);
  }

  /** Adds what a message has besides its payload. */
  content(message: Properties): this {
    return this.option("headers", "json", message.headers)
      .option("key", "text", message.key)
      .option("type", "text", message.type)
      .option("content_type", "text", message.contentType);
  }

  /** Returns the statement that reads these columns of the function's rows. */
  rows<C extends Columns, T>(columns: C, decode: (row: Values<C>) => T): Statement<T[]> {
    const list = Object.values(columns).map(({ sql }, n) => `${sql} AS c${String(n + 1)}`);
    return {
      text: `SELECT ${list.join(", ")} FROM ${this.#call()}`,
      values: this.#values,
      decode: (rows) => rows.map((row) => decode(valuesOf(row, columns))),
    };
  }

  /** Returns the statement that reads these columns of the function's only row. */
  row<C extends Columns, T>(columns: C, decode: (row: Values<C>) => T): Statement<T> {
    const all = this.rows(columns, decode);
    return { ...all, decode: (rows) => only(all.decode(rows)) };
  }

  /** Returns the statement that reads the value of the function, and executes another function. */
  valueAnd<T>(column: (sql: string) => Column<T>, other: Column<unknown>): Statement<T> {
    const statement = this.value(column);
    return { ...statement, text: `${statement.text}, ${other.sql} AS c2` };
  }

  /** Returns the statement that reads the value of the function. */
  value<T>(column: (sql: string) => Column<T>): Statement<T> {
    const result = column(this.#call());
    return {
      text: `SELECT ${result.sql} AS c1`,
      values: this.#values,
      decode: (rows) => only(rows.map((row) => result.decode(row["c1"]))),
    };
  }

  #call(): string {
    return `${this.#name}(${this.#arguments.join(", ")})`;
  }

  #add(type: string, value: Parameter, name = ""): this {
    // UTF-8 has no half of a surrogate pair. All halves would become the same character, so two ids
    // would be one.
    if (typeof value === "string" && /\p{Surrogate}/u.test(value)) {
      throw new RangeError(`${JSON.stringify(value)} has half of a surrogate pair`);
    }
    if (typeof value === "string" && value.includes("\0")) {
      throw new RangeError(`${JSON.stringify(value)} has a zero byte, which cannot be stored`);
    }
    this.#values.push(value);
    const parameter = `$${String(this.#values.length)}`;
    // postgres.js encodes a value for a parameter of type jsonb, and asks the server for the types.
    const isDirect = type === "text" || type === "bytea";
    const typed = isDirect ? parameter : `CAST(${parameter} AS text)`;
    this.#arguments.push(`${name}CAST(${typed} AS ${type})`);
    return this;
  }
}

/** Returns the values of a row, whose columns are named by their position. */
function valuesOf<C extends Columns>(row: Row, columns: C): Values<C> {
  const values = Object.entries(columns).map(([name, column], n) => [
    name,
    column.decode(row[`c${String(n + 1)}`]),
  ]);
  return Object.fromEntries(values) as Values<C>;
}

/** How the values of optional arguments become parameters. */
const ENCODINGS = {
  text: { sql: "text", encode: (value: string) => value },
  bytes: { sql: "bytea", encode: (value: Uint8Array) => value },
  boolean: { sql: "boolean", encode: (value: boolean) => String(value) },
  integer: { sql: "integer", encode: (value: number) => String(value) },
  bigint: { sql: "bigint", encode: (value: bigint) => String(value) },
  json: { sql: "jsonb", encode: textOfJson },
  /** The response of an external call, which is stored byte for byte. */
  response: { sql: "json", encode: textOfJson },
  time: { sql: "timestamptz", encode: (value: Date) => value.toISOString() },
  milliseconds: { sql: "interval", encode: intervalText },
  uuid: { sql: "uuid", encode: (value: string) => value },
} satisfies Record<string, { readonly sql: string; encode(value: never): Parameter }>;

type Encodings = typeof ENCODINGS;

function intervalText(milliseconds: number): string {
  return `${String(milliseconds)} milliseconds`;
}

/** Returns an array as the text that PostgreSQL reads. */
function arrayLiteral(values: readonly string[]): string {
  return `{${values.map((value) => `"${value.replace(/[\\"]/g, "\\$&")}"`).join(",")}}`;
}

function only<T>(values: readonly T[]): T {
  if (values.length === 1) return values[0] as T;
  throw new UnexpectedResultError(`expected one row, got ${String(values.length)}`);
}
