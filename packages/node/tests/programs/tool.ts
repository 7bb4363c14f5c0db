/**
 * Calls a tool, and stops at a point of the call: tool.js <point> <id> <destination> <gateway>.
 * Writes the name of the point.
 */

import pg from "pg";

import { once } from "../../src/index.js";
import { refund } from "../gateway.js";
import "./parent.js";

const [point = "", id = "", destination = "", gateway = ""] = process.argv.slice(2);

/** Writes the line, and never returns. */
function stop(): Promise<never> {
  console.log(point);
  return new Promise(() => undefined);
}

/** The statement before which the process stops. */
const STATEMENTS: Readonly<Record<string, string>> = {
  "before the step": "idem_begin_call",
  "before the record": "idem_finish_call",
  "before the completion": "idem_complete",
};

type Query = (this: pg.Client, ...parameters: unknown[]) => unknown;

const prototype = pg.Client.prototype as unknown as { query: Query };
const query = prototype.query;
prototype.query = function (...parameters) {
  const last = STATEMENTS[point];
  const [first] = parameters as [string | { readonly text: string }];
  const text = typeof first === "string" ? first : first.text;
  if (last !== undefined && text.includes(last)) return stop();
  return query.apply(this, parameters);
};

const pool = new pg.Pool();
const call = once(
  pool,
  destination,
  async (_args: { order: string }, _context, { idempotencyKey }) => {
    if (point === "before the call") await stop();
    const isStopped = point === "during the call";
    return refund(gateway, idempotencyKey, () => {
      if (isStopped) void stop();
    });
  },
  { scope: () => null, id: () => id, onUnknown: "fail", leaseMs: 500 },
);
await call({ order: "o-1" });
await stop();
