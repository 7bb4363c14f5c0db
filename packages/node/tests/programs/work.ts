/** Writes a row of a message and never commits: work.js <pool> <id> <destination>. */

import { process as processMessage } from "../../src/index.js";
import { execute, POOLS } from "../pools.js";
import "./parent.js";

const [kind = "", id = "", destination = ""] = process.argv.slice(2);
const { pool } = POOLS[kind]?.() ?? {};
if (pool === undefined) throw new Error(`no pool ${kind}`);
await processMessage(pool, { id, destination }, async (client) => {
  await execute(client, "INSERT INTO work VALUES ($1, 'killed')", [destination]);
  console.log("written");
  await new Promise(() => undefined);
});
