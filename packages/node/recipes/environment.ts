/** The settings of the recipes. PGHOST, PGDATABASE and so on name the database. */

import pg from "pg";

/** Returns a variable of the environment, which must be set. */
export function required(name: string): string {
  const value = process.env[name];
  if (value === undefined) throw new Error(`set ${name}`);
  return value;
}

/** Returns a pool for this number of messages at a time. */
export function poolOf(max: number): pg.Pool {
  const pool = new pg.Pool({ max });
  // Without a listener, the loss of an idle connection ends the process.
  pool.on("error", (error) => {
    console.error("an idle connection was lost", error);
  });
  // A server that stops can end a new connection before `pool.connect` returns it. Then there is no
  // other listener, and the next statement fails.
  pool.on("connect", (client) => {
    client.on("error", () => undefined);
  });
  return pool;
}
