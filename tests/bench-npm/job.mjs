// The job that every system does: a message of about 200 bytes, and one business statement for it.

import pg from "pg";

/** Jobs that are handled at once. */
export const WORKERS = 8;

/** The business: a fact that says which job it is of and when it was done. Nothing in it tells a job that is done twice; the count does. */
const BUSINESS = {
  name: "business",
  text: "INSERT INTO fact (job, account, amount) VALUES ($1, $2, $3)",
};

/** What a producer sends as the n-th message. */
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

/** The business of one message, on whatever runs queries. */
export function work(client, { job, account, amount }) {
  return client.query({ ...BUSINESS, values: [job, account, amount] });
}

export function pool(max = WORKERS) {
  return new pg.Pool({ max });
}

/** Sends the messages `from` to `from + count` in batches, as many at once as there are workers. */
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

/** Counts jobs, and says when all are done. */
export function countdown(count) {
  const { promise, resolve } = Promise.withResolvers();
  let left = count;
  const one = () => {
    left -= 1;
    if (left === 0) resolve();
  };
  return { done: promise, one };
}
