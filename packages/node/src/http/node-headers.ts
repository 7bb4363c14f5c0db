/** Headers of `node:http`. */

import type { OutgoingHttpHeader } from "node:http";

import type { Headers } from "./recorded.js";

/** Headers by their names, as a response has them. */
export type OutgoingHeaders = Readonly<Record<string, OutgoingHttpHeader | undefined>>;

/** Returns the headers that differ from those before, one entry for each value. */
export function changedHeaders(
  headers: OutgoingHeaders,
  before: OutgoingHeaders = {},
): Headers {
  return Object.entries(headers)
    .filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(before[name]))
    .flatMap(([name, value]) => [value ?? []].flat().map((one) => [name, String(one)] as const));
}

/** Returns the values of each name. Headers are an object, or an array of names and values. */
export function grouped(headers: unknown): Map<string, string[] | string> {
  const groups = new Map<string, string[] | string>();
  for (const [name, value] of Array.isArray(headers) ? pairs(headers) : entries(headers)) {
    if (value === undefined) continue;
    const key = name.toLowerCase();
    const values = [groups.get(key) ?? [], value].flat(2).map(String);
    groups.set(key, values.length === 1 ? String(values[0]) : values);
  }
  return groups;
}

function entries(headers: unknown): [string, unknown][] {
  return Object.entries(headers ?? {});
}

/** An array has pairs, or names and values in turn. */
function pairs(headers: unknown[]): [string, unknown][] {
  if (Array.isArray(headers[0])) return headers as [string, unknown][];
  return headers.flatMap((name, n) => (n % 2 === 0 ? [[String(name), headers[n + 1]]] : []));
}
