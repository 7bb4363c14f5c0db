// node main.mjs SYSTEM setup|enqueue|drain [FROM] [COUNT]: runs the command and prints its result
// for the benchmark as JSON. The server is given by PGHOST, PGUSER and PGDATABASE.

import * as graphileWorker from "./graphile-worker.mjs";
import pgBoss from "./pg-boss.mjs";

const SYSTEMS = {
  "graphile-worker": () => graphileWorker,
  "pg-boss": () => pgBoss(false),
  "pg-boss-transactional": () => pgBoss(true),
};

const [name, command, from, count] = process.argv.slice(2);
const system = SYSTEMS[name]();
let seconds = 0;
const clock = async (part) => {
  const start = process.hrtime.bigint();
  await part();
  seconds = Number(process.hrtime.bigint() - start) / 1e9;
};
if (command === "setup") await system.setup();
else if (command === "enqueue") await system.enqueue(Number(from), Number(count), clock);
else await system.drain(Number(count));
console.log(JSON.stringify({ seconds, settings: system.settings, left: system.left }));
