/** Translates a statement with one function to the method of the package. */

import type { Idem } from "../../src/index.js";
import { NoMethod } from "./arguments.js";
import type { Call } from "./cases.js";
import { METHODS } from "./methods.js";

export interface Translated {
  readonly name: string;
  /** Executes the method, and returns the rows of the statement. */
  readonly execute: (on: Idem) => Promise<unknown[][]>;
}

const STATEMENT = /^SELECT (?:(?<columns>[\w ,*]+) FROM )?(?<name>idem_\w+)\((?<list>[^()]*)\)$/;
const ARGUMENT =
  /^(?:(?<name>\w+) => )?(?:\$(?<number>\d+)|(?<literal>NULL|true|false|\d+|'[^']*'))(::uuid)?$/;

/** Returns undefined if the statement can only be executed as SQL. */
export function translate(call: Call, values: readonly unknown[]): Translated | undefined {
  const { columns, name, list } = STATEMENT.exec(call.sql)?.groups ?? {};
  const method = METHODS[name ?? ""];
  if (name === undefined || list === undefined || method === undefined) return undefined;
  try {
    const request = method.prepare(byName(list, method.parameters, values));
    const names = columns?.split(", ");
    // An expression over columns is executed as SQL.
    if (names?.some((column) => !/^(\w+|\*)$/.test(column))) return undefined;
    return {
      name,
      execute: async (on) => rows(await request(on), names, call.rows !== undefined),
    };
  } catch (error) {
    if (error instanceof NoMethod) return undefined;
    throw error;
  }
}

/** Returns the arguments of a function by the names of its parameters. */
function byName(list: string, parameters: readonly string[], values: readonly unknown[]) {
  const found: Record<string, unknown> = {};
  const texts = list === "" ? [] : list.split(", ");
  for (const [position, text] of texts.entries()) {
    const { name, number, literal } = ARGUMENT.exec(text)?.groups ?? {};
    const parameter = name ?? parameters[position];
    if (parameter === undefined || !parameters.includes(parameter)) throw new NoMethod();
    if (number !== undefined) found[parameter] = values[Number(number) - 1];
    else if (literal !== undefined) found[parameter] = valueOf(literal);
    else throw new NoMethod();
  }
  return found;
}

function valueOf(literal: string): unknown {
  if (literal === "NULL") return null;
  if (literal.startsWith("'")) return literal.slice(1, -1);
  return JSON.parse(literal) as unknown;
}

/** Returns a result as the rows of the statement. */
function rows(result: unknown, columns: string[] | undefined, areCompared: boolean): unknown[][] {
  const isSet = Array.isArray(result) && result.every((row) => typeof row === "object");
  const isRow = typeof result === "object" && result !== null && !Array.isArray(result);
  if (columns === undefined || columns[0] === "*") {
    if (areCompared && (isRow || (isSet && result.length > 0))) {
      throw new Error("the columns of this statement have no names");
    }
    return [[plain(result)]];
  }
  const all = isSet ? (result as object[]) : [result as object];
  return all.map((row) => columns.map((column) => plain(member(row, column))));
}

/** Returns the member for a column, null if this result has no such member. */
function member(row: object, column: string): unknown {
  const name = column.replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase());
  return (row as Record<string, unknown>)[name] ?? null;
}

/** The cases have no bigint. */
function plain(value: unknown): unknown {
  return typeof value === "bigint" ? Number(value) : value;
}
