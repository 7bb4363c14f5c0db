/** Redis with the queue of BullMQ: REDIS_URL. */

import { Queue } from "bullmq";
import { Redis } from "ioredis";

import { required } from "../environment.js";
import type { Broker } from "./proof.js";

/** The states of jobs that are not acknowledged. A job that failed is not processed again. */
const OPEN = ["active", "delayed", "failed", "prioritized", "wait"] as const;

interface JobQueue extends Broker {
  add(data: unknown): Promise<void>;
  /** Closes all connections of the server. */
  loseConnections(): Promise<void>;
}

/** Returns the queue. The id of a payment is a part of the data of its job. */
export function bullMq(): JobQueue {
  return {
    reset: () => withQueue((queue) => queue.obliterate({ force: true })),
    publish: (messages) =>
      withQueue(async (queue) => {
        for (const { id, body } of messages) {
          const { account, cents } = JSON.parse(Buffer.from(body).toString()) as Data;
          await queue.add("charge", { id, account, cents });
        }
      }),
    isDrained: () =>
      withQueue(async (queue) => (await queue.getJobCountByTypes(...OPEN)) === 0),
    add: (data) =>
      withQueue(async (queue) => {
        await queue.add("charge", data);
      }),
    loseConnections: async () => {
      const redis = new Redis(required("REDIS_URL"));
      // This connection is not closed.
      await redis.client("KILL", "TYPE", "normal");
      await redis.quit();
    },
  };
}

interface Data {
  readonly account: unknown;
  readonly cents: unknown;
}

async function withQueue<T>(work: (queue: Queue) => Promise<T>): Promise<T> {
  const queue = new Queue("payments", { connection: { url: required("REDIS_URL") } });
  try {
    return await work(queue);
  } finally {
    await queue.close();
  }
}
