import pg from "pg";

import type { Library } from "./library.js";

export function connect(): Promise<Library> {
  const pool = new pg.Pool({ max: 2 });
  return Promise.resolve({
    name: "pg",
    pools: [pool],
    execute: (executor, text) => (executor as pg.PoolClient).query(text),
    async transaction(work) {
      const client = await pool.connect();
      try {
        await client.query("BEGIN");
        const result = await work(client);
        await client.query("COMMIT");
        return result;
      } catch (error) {
        await client.query("ROLLBACK");
        throw error;
      } finally {
        client.release();
      }
    },
    close: () => pool.end(),
  });
}
