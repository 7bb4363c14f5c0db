/** The specification cases of the SQL functions, which tests/spec/README.md of idem describes. */

import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

export interface Case {
  readonly name: string;
  readonly steps: readonly Step[];
}

export type Step = string | Call;

export interface Call {
  readonly sql: string;
  readonly arguments?: readonly unknown[];
  readonly session?: string;
  readonly rows?: readonly (readonly unknown[])[];
  readonly error?: { readonly sqlstate: string; readonly hint?: string };
}

/** JSON, as an argument or a value of a result. */
export class Json {
  readonly value: unknown;

  constructor(value: unknown) {
    this.value = value;
  }
}

/** Returns the cases of each file. */
export function readCases(folder: string): [string, Case[]][] {
  const files = readdirSync(folder).filter((name) => name.endsWith(".json"));
  return files.sort().map((name) => {
    const { cases } = JSON.parse(readFileSync(join(folder, name), "utf8")) as { cases: Case[] };
    return [name, cases];
  });
}

/** Returns an argument as a value of JavaScript. `saved` has the values of earlier rows. */
export function argumentOf(value: unknown, saved: ReadonlyMap<string, unknown>): unknown {
  if (!isObject(value)) return value;
  if ("json" in value) return new Json(value["json"]);
  if ("bytes" in value) return Buffer.from(String(value["bytes"]), "base64");
  if ("saved" in value) return saved.get(String(value["saved"]));
  if ("repeat" in value) return String(value["repeat"]).repeat(Number(value["times"]));
  throw new Error(`an argument of another kind: ${JSON.stringify(value)}`);
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
