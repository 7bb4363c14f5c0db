// pg-boss: workers fetch batches without a pause while the queue is not empty. A batch is processed
// in one of two ways: each job by itself, or all jobs of the batch and its completion in one
// transaction (`transactional`).

import { PgBoss } from "pg-boss";
import { WORKERS, countdown, inBatches, pool, work } from "./job.mjs";

const QUEUE = "business";
const BATCH = 100;

export default function pgBoss(transactional) {
  const options = {
    batchSize: BATCH,
    localConcurrency: WORKERS,
    burstWhenBatchFull: true,
    pollingIntervalSeconds: 0.5,
    transactional,
  };

  async function started() {
    const boss = new PgBoss({ schema: "pgboss", max: 2 * WORKERS + 2, host: process.env.PGHOST, user: process.env.PGUSER, database: process.env.PGDATABASE, supervise: false, schedule: false });
    boss.on("error", console.error);
    await boss.start();
    return boss;
  }

  return {
    settings: { work: options, insert: BATCH, supervise: false, schedule: false },

    async setup() {
      const boss = await started();
      await boss.createQueue(QUEUE, { partition: true });
      await boss.stop({ graceful: false });
    },

    async enqueue(from, count, clock) {
      const boss = await started();
      await clock(() =>
        inBatches(from, count, BATCH, (messages) => boss.insert(QUEUE, messages.map((data) => ({ data })))),
      );
      await boss.stop({ graceful: false });
    },

    async drain(count) {
      const boss = await started();
      const { done, one } = countdown(count);
      const database = pool();
      const handler = async (jobs, tx) => {
        const client = tx ? { query: ({ text, values }) => tx.executeSql(text, values) } : database;
        for (const job of jobs) {
          await work(client, job.data);
          one();
        }
      };
      await boss.work(QUEUE, options, handler);
      await done;
      await boss.stop({ graceful: true });
      await database.end();
    },

    left: `SELECT count(*) FROM pgboss.job WHERE name = '${QUEUE}' AND state <> 'completed'`,
  };
}
