// graphile-worker: jobs are fetched by the hundred into a local queue and deleted in batches.

import { Logger, makeWorkerUtils, run } from "graphile-worker";
import { WORKERS, countdown, inBatches, pool, work } from "./job.mjs";

const TASK = "business";
const BATCH = 100;

const worker = {
  concurrentJobs: WORKERS,
  maxPoolSize: WORKERS + 2,
  pollInterval: 100,
  preparedStatements: true,
  localQueue: { size: 500 },
  completeJobBatchDelay: 0,
  failJobBatchDelay: 0,
};

export const settings = { worker, addJobs: BATCH };

const preset = { worker: { ...worker, logger: new Logger(() => (level, text) => level === "error" && console.error(text)) } };

export async function setup() {
  const utils = await makeWorkerUtils({ preset });
  await utils.migrate();
  await utils.release();
}

export async function enqueue(from, count, clock) {
  const utils = await makeWorkerUtils({ preset });
  await clock(() =>
    inBatches(from, count, BATCH, (messages) =>
      utils.addJobs(messages.map((payload) => ({ identifier: TASK, payload }))),
    ),
  );
  await utils.release();
}

export async function drain(count) {
  const { done, one } = countdown(count);
  const database = pool();
  const runner = await run({
    preset,
    noHandleSignals: true,
    taskList: {
      [TASK]: async (payload) => {
        await work(database, payload);
        one();
      },
    },
  });
  await done;
  await runner.stop();
  await database.end();
}

export const left = "SELECT count(*) FROM graphile_worker._private_jobs";
