/** The proof of a consumer: the same tests with each broker. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { acknowledgingEarly, running, type Recipe } from "./consumer.js";
import { CHARGE, Database, PAUSE, WITHOUT_CLAIMS } from "./database.js";
import { HELD, type Sent } from "./payments.js";
import { until } from "./until.js";

/** The queue, stream or topic of a test. */
export interface Broker {
  /** Creates it anew, without messages. */
  reset(): Promise<void>;
  publish(messages: readonly Sent[]): Promise<void>;
  /** Returns whether every message is acknowledged. */
  isDrained(): Promise<boolean>;
}

/** Registers the tests that each recipe passes. */
export function prove(recipe: Recipe, broker: Broker): void {
  const on = (name: string, work: (database: Database) => Promise<void>) =>
    test(name, () => withDatabase(broker, work));

  on("killed consumers pay once", async (database) => {
    await consumeAndKill(database, recipe, broker);
    await database.assertPaidOnce();
  });

  // The broken variant that the test above finds.
  on("killed consumers without claims pay again", async (database) => {
    const environment = { ...recipe.environment, ...WITHOUT_CLAIMS };
    await consumeAndKill(database, { ...recipe, environment }, broker);
    const charges = await database.charges();
    assert.ok(Math.min(...charges) >= 2, String(charges));
    assert.ok(Math.max(...charges) >= 3, "no committed payment was delivered again");
    await assert.rejects(database.assertPaidOnce());
  });

  on("consumer that acknowledges early loses messages", async (database) => {
    await killAfterAcknowledgements(database, acknowledgingEarly(recipe), broker);
    await drain(database, recipe, broker);
    const charges = await database.charges();
    assert.ok(charges.slice(...HELD).every((count) => count === 0), String(charges));
  });

  on("consumers that are killed twice in a payment pay once", async (database) => {
    const accounts = await database.lockAccounts();
    await broker.publish(database.payments.slice(...HELD));
    for (let kill = 1; kill <= 2; kill += 1) {
      await running(database, recipe, (consumer) => consumer.untilWaiting(CHARGE));
    }
    await accounts.release();
    await drain(database, recipe, broker);
    await database.assertHeldPaidOnce();
  });

  on("lost connections of the database lose no message", async (database) => {
    const accounts = await database.lockAccounts();
    await broker.publish(database.payments.slice(...HELD));
    await running(database, recipe, async (consumer) => {
      await consumer.untilWaiting(CHARGE);
      await database.loseConnections(consumer.session);
      if (recipe.endsAfterFailure) assert.equal(await consumer.end(), 1);
      else await consumer.untilWaiting(CHARGE);
    });
    await accounts.release();
    await drain(database, recipe, broker);
    await database.assertHeldPaidOnce();
  });

  on("failed payment is charged by a later attempt", async (database) => {
    await database.failTwice();
    await process(database, recipe, broker, database.payments.slice(0, 1));
    const [first, ...others] = await database.charges();
    assert.deepEqual([first, Math.max(...others)], [1, 0]);
  });

  on("payment that is always rejected becomes a dead letter", async (database) => {
    const [poisonous = assert.fail(), ...others] = database.payments;
    await database.forbidOverdraft(poisonous.account);
    await process(database, recipe, broker, [poisonous, ...others, poisonous]);
    assert.equal(await database.deadLettersWithId(poisonous.id), 1);
    assert.deepEqual(await database.charges(), [0, ...others.map(() => 1)]);
  });
}

/** Publishes messages, and waits until a consumer has acknowledged all of them. */
export async function process(
  database: Database,
  recipe: Recipe,
  broker: Broker,
  messages: readonly Sent[],
): Promise<void> {
  await broker.publish(messages);
  await drain(database, recipe, broker);
}

/** Executes a test with new accounts, and without messages of earlier tests. */
export async function withDatabase(
  broker: Broker,
  work: (database: Database) => Promise<void>,
): Promise<void> {
  await broker.reset();
  const database = await Database.open();
  try {
    await work(database);
  } finally {
    await database.close();
  }
}

async function drain(database: Database, recipe: Recipe, broker: Broker): Promise<void> {
  await running(database, recipe, () =>
    until("every message is acknowledged", () => broker.isDrained()),
  );
}

/**
 * Publishes each payment twice, and kills two consumers. A third one drains the queue.
 *
 * The first consumer is killed before a commit, and the second one after a commit. The payments of
 * both are published again at the end only, so that no duplicate hides a lost message.
 */
async function consumeAndKill(database: Database, recipe: Recipe, broker: Broker): Promise<void> {
  const held = database.payments.slice(...HELD);
  await broker.publish(database.payments);
  await broker.publish(database.payments.filter((payment) => !held.includes(payment)));
  const accounts = await database.lockAccounts();
  await running(database, recipe, (consumer) => consumer.untilWaiting(CHARGE));
  const unpaid = (await database.charges()).filter((count) => count === 0);
  assert.ok(unpaid.length >= held.length, "the consumer was not killed in the middle");
  await running(database, recipe, async (consumer) => {
    await consumer.untilWaiting(CHARGE);
    const pause = await database.pause();
    await accounts.release();
    await consumer.untilWaiting(PAUSE);
    await consumer.kill();
    await pause.release();
  });
  await running(database, recipe, async () => {
    await until("every message is acknowledged", () => broker.isDrained());
    assert.ok(!(await database.charges()).includes(0), "a message is lost");
    await broker.publish(held);
    await until("every duplicate is acknowledged", () => broker.isDrained());
  });
}

/** Kills a consumer that has acknowledged every message, while transactions wait. */
async function killAfterAcknowledgements(
  database: Database,
  recipe: Recipe,
  broker: Broker,
): Promise<void> {
  const accounts = await database.lockAccounts();
  await broker.publish(database.payments.slice(...HELD));
  await running(database, recipe, async (consumer) => {
    await consumer.untilWaiting(CHARGE);
    await until("every message is acknowledged", () => broker.isDrained());
  });
  await accounts.release();
}
