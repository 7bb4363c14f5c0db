/**
 * Stops a recipe between a commit and the acknowledgement, while a test holds an advisory lock.
 * `node --import` executes this module before the recipe.
 */

import pg from "pg";

type Query = (this: pg.Client, ...parameters: unknown[]) => unknown;

/** Statements that idem-pg sends at once. */
interface Batch {
  callback(error?: Error): void;
  handleCommandComplete(reply: { readonly text: string }): void;
}

/** How idem-pg commits in a simple query. */
const COMMIT = /(; COMMIT|COMMIT \/\* idem \*\/)$/;

const prototype = pg.Client.prototype as unknown as { query: Query };
const query = prototype.query;

prototype.query = function (...parameters) {
  const [statement] = parameters;
  if (isBatch(statement)) pauseAfterCommit(statement);
  const result = query.apply(this, parameters);
  if (typeof statement !== "string" || !COMMIT.test(statement)) return result;
  return (result as Promise<unknown>).then(async (committed) => {
    await pause();
    return committed;
  });
};

function isBatch(statement: unknown): statement is Batch {
  return typeof statement === "object" && statement !== null && "submit" in statement;
}

function pauseAfterCommit(batch: Batch): void {
  const callback = batch.callback.bind(batch);
  const complete = batch.handleCommandComplete.bind(batch);
  let isCommitted = false;
  batch.handleCommandComplete = (reply) => {
    isCommitted ||= reply.text === "COMMIT";
    complete(reply);
  };
  batch.callback = (error) => {
    if (error !== undefined || !isCommitted) callback(error);
    else void pause().then(() => { callback(); });
  };
}

async function pause(): Promise<void> {
  const barrier = new pg.Client();
  await barrier.connect();
  await query.call(barrier, "SELECT pg_advisory_lock_shared(1)");
  await barrier.end();
}
