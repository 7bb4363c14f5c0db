/** Holds a lease until it is killed: hold.js <pool> <id> <destination> <lease in ms>. */

import { lease } from "../../src/index.js";
import { POOLS } from "../pools.js";
import "./parent.js";

const [kind = "", id = "", destination = "", leaseMs] = process.argv.slice(2);
const { pool } = POOLS[kind]?.() ?? {};
if (pool === undefined) throw new Error(`no pool ${kind}`);
const held = await lease(pool, { id, destination, leaseMs: Number(leaseMs) });
console.log(held.outcome);
