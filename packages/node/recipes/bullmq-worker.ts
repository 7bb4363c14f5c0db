/**
 * A worker of BullMQ that charges each payment once.
 *
 * `REDIS_URL=redis://… node bullmq-worker.js` works on the queue `payments`. The data of a job is
 * `{ id, account, cents }`: the id of the payment stays the same if a producer adds it again, which
 * the id of a job need not do. Redis must not evict keys, and must write its data to the disk.
 */

import { DelayedError, Worker, type Job } from "bullmq";

import { poolOf, required } from "./environment.js";
import { handle } from "./payments.js";

const QUEUE = "payments";
const CONCURRENCY = 10;
const RETRY_MS = Number(process.env["RETRY_MS"] ?? "5000");
/** How long a job of a killed process is locked. BullMQ renews the locks of a running process. */
const LOCK_MS = Number(process.env["LOCK_MS"] ?? "30000");

const pool = poolOf(CONCURRENCY);

/** BullMQ completes the job when this function has returned, which is after the commit. */
async function work(job: Job<unknown>, token?: string): Promise<void> {
  const body = Buffer.from(JSON.stringify(job.data));
  try {
    await handle(pool, { id: idOf(job.data), body, source: QUEUE });
  } catch (error) {
    // A job has one attempt unless its producer sets more. So another attempt of a failed
    // transaction is no attempt of the job.
    console.error("the job is repeated", error);
    await job.moveToDelayed(Date.now() + RETRY_MS, token).catch(report);
    // A job that is not delayed has a lock that ends, as that of a killed process.
    throw new DelayedError();
  }
}

function idOf(data: unknown): unknown {
  return typeof data === "object" && data !== null && "id" in data ? data.id : null;
}

const worker = new Worker(QUEUE, work, {
  connection: { url: required("REDIS_URL"), maxRetriesPerRequest: null },
  concurrency: CONCURRENCY,
  lockDuration: LOCK_MS,
  stalledInterval: LOCK_MS,
  // By default, a job fails without an attempt when its process was killed a second time.
  maxStalledCount: Number.MAX_SAFE_INTEGER,
});
// For example a lost connection of Redis, which is opened again. Another attempt finds the claim.
worker.on("error", report);

function report(error: unknown): void {
  console.error("an error of the worker or of Redis", error);
}
