/** Compares the values of a row. */

import assert from "node:assert/strict";

import { isObject, Json } from "./cases.js";

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

/** Fails if the value does not match. Keeps the values that the case saves. */
export function check(expected: unknown, value: unknown, saved: Map<string, unknown>): void {
  if (Array.isArray(expected)) {
    assert.ok(Array.isArray(value), `expected an array, got ${String(value)}`);
    assert.equal(value.length, expected.length);
    for (const [n, item] of expected.entries()) check(item, value[n], saved);
  } else if (!isObject(expected)) {
    assert.deepEqual(value, expected);
  } else if ("json" in expected) {
    assert.deepEqual(value instanceof Json ? value.value : value, expected["json"]);
  } else if ("bytes" in expected) {
    assert.ok(value instanceof Uint8Array, `expected bytes, got ${String(value)}`);
    assert.equal(Buffer.from(value).toString("base64"), expected["bytes"]);
  } else if ("saved" in expected) {
    assert.deepEqual(value, saved.get(String(expected["saved"])));
  } else {
    checkAny(String(expected["any"]), value);
    if ("save" in expected) saved.set(String(expected["save"]), value);
  }
}

function checkAny(type: string, value: unknown): void {
  if (type === "integer") assert.ok(Number.isInteger(value), `no integer: ${String(value)}`);
  else assert.equal(typeof value, "string");
  if (type === "uuid") assert.match(String(value), UUID);
}
