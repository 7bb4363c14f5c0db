/** Ids for calls of tools in frameworks that give no stable ids. */

import { createHash } from "node:crypto";

import { textOfJson } from "./json.js";

/**
 * Returns an id for a call whose own id changes when the model repeats the call: a hash of the name
 * of the tool, the arguments and `occurrence`, which is how many equal calls the conversation had
 * before this one, from 0. Use it as the id of a call, with the conversation as the scope.
 *
 * The arguments are JSON. The order of their keys makes no difference, and `500.0` is `500`. The
 * package for Python returns the same keys, except for fractions below 0.0001 and integers above
 * 2 ** 53.
 */
export function toolCallKey(tool: string, args: unknown, occurrence: number): string {
  if (!Number.isSafeInteger(occurrence) || occurrence < 0) {
    throw new RangeError("occurrence counts from 0");
  }
  const document: unknown = JSON.parse(textOfJson([tool, args, occurrence]));
  return createHash("sha256").update(canonical(document)).digest("hex");
}

/** Returns the text of RFC 8785. `sort` compares the units of UTF-16. */
function canonical(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  const members = value as Record<string, unknown>;
  const member = (name: string) => `${JSON.stringify(name)}:${canonical(members[name])}`;
  return `{${Object.keys(members).sort().map(member).join(",")}}`;
}
