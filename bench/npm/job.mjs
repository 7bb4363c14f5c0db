// The job that every system executes: it takes a message of about 200 bytes and executes one
// business statement.

import pg from "pg";

/** The number of jobs that are processed at the same time. */
export const WORKERS = 8;

/**
 * The business statement: inserts a fact with the job and the time. The table has no unique
 * constraint, so a job that is executed twice inserts two facts. The benchmark counts the facts.
 */
const BUSINESS = {
  name: "business",
  text: "INSERT INTO fact (job, account, amount) VALUES ($1, $2, $3)",
};

/** Returns the n-th message of a producer. */
export function message(n) {
  return {
    job: n,
    account: n % 10_000,
    amount: 1 + (n % 97),
    type: "StockReserved",
    order: `order-${n}`,
    warehouse: "north",
    lines: [
      { article: "A-1001", quantity: 2 },
      { article: "B-2002", quantity: 1 },
    ],
    currency: "EUR",
  };
}

/** Executes the business statement of one message with a client or a pool. */
export function work(client, { job, account, amount }) {
  return client.query({ ...BUSINESS, values: [job, account, amount] });
}

export function pool(max = WORKERS) {
  return new pg.Pool({ max });
}

/**
 * Sends the messages from `from` up to, and not including, `from + count` in batches of `size`,
 * with WORKERS batches at the same time.
 */
export async function inBatches(from, count, size, send) {
  let next = from;
  const end = from + count;
  const producer = async () => {
    while (next < end) {
      const first = next;
      next = Math.min(first + size, end);
      await send(Array.from({ length: next - first }, (_, i) => message(first + i)));
    }
  };
  await Promise.all(Array.from({ length: WORKERS }, producer));
}

/** Counts executed jobs: `one` counts a job, and `done` resolves when all jobs are counted. */
export function countdown(count) {
  const { promise, resolve } = Promise.withResolvers();
  let left = count;
  const one = () => {
    left -= 1;
    if (left === 0) resolve();
  };
  return { done: promise, one };
}
