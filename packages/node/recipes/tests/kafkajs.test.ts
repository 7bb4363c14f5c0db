/** The consumer of `kafkajs-consumer.ts`, with the mock cluster of librdkafka. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { running } from "./consumer.js";
import { CHARGE } from "./database.js";
import { kafka } from "./kafka.js";
import { HELD, INVALID_IDS, malformed } from "./payments.js";
import { process, prove, withDatabase } from "./proof.js";
import { until } from "./until.js";

const topic = kafka();
const recipe = {
  name: "kafkajs-consumer",
  // Partitions of a killed process are assigned again so soon.
  environment: { SESSION_TIMEOUT_MS: "4000" },
  endsAfterFailure: true,
};

prove(recipe, topic);

test("message without an id is claimed by its position", () =>
  withDatabase(topic, async (database) => {
    const messages = database.payments.map(({ body }) => ({ id: null, body }));
    await process(database, recipe, topic, messages);
    assert.deepEqual([...new Set(await database.charges())], [1]);
  }));

// The first consumer does not join the group again while its handlers wait.
test("partitions that move in the middle of payments pay once", () =>
  withDatabase(topic, async (database) => {
    const accounts = await database.lockAccounts();
    await topic.publish(database.payments.slice(...HELD));
    await running(database, recipe, async (first) => {
      await first.untilWaiting(CHARGE);
      await running(database, recipe, async (second) => {
        // In the claim of a payment that the first consumer processes.
        await second.untilWaiting("");
        await accounts.release();
        await until("every offset is committed", () => topic.isDrained());
      });
    });
    await database.assertHeldPaidOnce();
  }));

test("malformed messages become dead letters", () =>
  withDatabase(topic, async (database) => {
    const messages = malformed();
    const ids = [Buffer.from([0xff]), Buffer.from("x".repeat(1025)), ...INVALID_IDS];
    const invalid = database.payments.slice(0, ids.length).map(({ body }, n) => ({
      id: ids[n] ?? null,
      body,
    }));
    await process(database, recipe, topic, [...invalid, ...messages, ...database.payments]);
    for (const { body } of invalid) assert.equal(await database.deadLettersWithBody(body), 1);
    for (const { id } of messages) assert.equal(await database.deadLettersWithId(id), 1);
    await database.assertPaidOnce();
  }));
