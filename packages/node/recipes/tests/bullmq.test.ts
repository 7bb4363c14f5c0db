/** The worker of `bullmq-worker.ts`, with Redis. */

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { test } from "node:test";

import { running } from "./consumer.js";
import { CHARGE } from "./database.js";
import { HELD, INVALID, json } from "./payments.js";
import { variantOf } from "./program.js";
import { process, prove, withDatabase } from "./proof.js";
import { bullMq } from "./redis.js";
import { until } from "./until.js";

const queue = bullMq();
const recipe = {
  name: "bullmq-worker",
  // Jobs of a killed process are processed again so soon, and failed ones too.
  environment: { LOCK_MS: "1000", RETRY_MS: "10" },
  endsAfterFailure: false,
};

prove(recipe, queue);

// With another token, the worker cannot delay the failed job.
test("failed job that cannot be delayed is repeated", () =>
  withDatabase(queue, async (database) => {
    const name = variantOf(recipe.name, "token", "RETRY_MS, token)", 'RETRY_MS, "other")');
    await database.failTwice();
    await process(database, { ...recipe, name }, queue, database.payments.slice(0, 1));
    const [first, ...others] = await database.charges();
    assert.deepEqual([first, Math.max(...others)], [1, 0]);
  }));

test("lost connection of Redis does not end the worker", () =>
  withDatabase(queue, async (database) => {
    const accounts = await database.lockAccounts();
    await queue.publish(database.payments.slice(...HELD));
    await running(database, recipe, async (consumer) => {
      await consumer.untilWaiting(CHARGE);
      await queue.loseConnections();
      await accounts.release();
      await until("every job is done", () => queue.isDrained());
    });
    await database.assertHeldPaidOnce();
  }));

test("malformed jobs become dead letters", () =>
  withDatabase(queue, async (database) => {
    const invalid = INVALID.map(([account, cents]) => ({ id: randomUUID(), account, cents }));
    const ids = [undefined, null, 7, "", "NUL\0", "replaced \uFFFD", "x".repeat(1025)];
    const withoutId = ids.map((id) => ({ id, account: 1, cents: 100, note: randomUUID() }));
    const others = [randomUUID(), [randomUUID()], { note: randomUUID() }];
    for (const data of [...withoutId, ...others, ...invalid]) await queue.add(data);
    await process(database, recipe, queue, database.payments);
    for (const data of [...withoutId, ...others]) {
      assert.equal(await database.deadLettersWithBody(json(data)), 1);
    }
    for (const { id } of invalid) assert.equal(await database.deadLettersWithId(id), 1);
    await database.assertPaidOnce();
  }));
