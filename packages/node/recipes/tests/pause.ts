/**
 * Stops a recipe between a commit and the acknowledgement, while a test holds an advisory lock.
 * `node --import` executes this module before the recipe.
 */

import pg from "pg";

type Query = (this: pg.Client, ...parameters: unknown[]) => unknown;

const prototype = pg.Client.prototype as unknown as { query: Query };
const query = prototype.query;

prototype.query = function (...parameters) {
  const result = query.apply(this, parameters);
  const [text] = parameters;
  if (typeof text !== "string" || !text.endsWith("; COMMIT")) return result;
  return (result as Promise<unknown>).then(async (committed) => {
    const barrier = new pg.Client();
    await barrier.connect();
    await query.call(barrier, "SELECT pg_advisory_lock_shared(1)");
    await barrier.end();
    return committed;
  });
};
