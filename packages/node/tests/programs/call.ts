/**
 * Leases a message, begins its external call and never ends it: call.js <pool> <id> <destination>.
 * Writes the key of the call and the token of the lease.
 */

import { lease } from "../../src/index.js";
import { POOLS } from "../pools.js";
import "./parent.js";

const [kind = "", id = "", destination = ""] = process.argv.slice(2);
const { pool } = POOLS[kind]?.() ?? {};
if (pool === undefined) throw new Error(`no pool ${kind}`);
const held = await lease(pool, { id, destination, leaseMs: 60_000 });
if (held.outcome !== "acquired") throw new Error(held.outcome);
await held.once(
  "charge",
  { cents: 500 },
  (call) =>
    new Promise(() => {
      console.log(call.idempotencyKey, String(held.token));
    }),
  { onUnknown: "fail" },
);
