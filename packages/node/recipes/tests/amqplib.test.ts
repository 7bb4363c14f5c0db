/** The consumer of `amqplib-consumer.ts`, with RabbitMQ. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { running } from "./consumer.js";
import { CHARGE } from "./database.js";
import { HELD, INVALID_IDS, malformed } from "./payments.js";
import { process, prove, withDatabase } from "./proof.js";
import { rabbitMq } from "./rabbitmq.js";

const queue = rabbitMq("payments");
const recipe = { name: "amqplib-consumer", environment: {}, endsAfterFailure: true };

prove(recipe, queue);

test("lost connection of RabbitMQ ends the process", () =>
  withDatabase(queue, async (database) => {
    const accounts = await database.lockAccounts();
    await queue.publish(database.payments.slice(...HELD));
    await running(database, recipe, async (consumer) => {
      await consumer.untilWaiting(CHARGE);
      await queue.loseConnections();
      assert.equal(await consumer.end(), 1);
    });
    await accounts.release();
    await process(database, recipe, queue, []);
    await database.assertHeldPaidOnce();
  }));

test("malformed messages become dead letters", () =>
  withDatabase(queue, async (database) => {
    const messages = malformed();
    const [first, second, third] = database.payments;
    const ids = [null, ...INVALID_IDS];
    const withoutId = [first, second, third].map((payment, n) => ({
      id: ids[n] ?? null,
      body: payment?.body ?? Buffer.of(),
    }));
    await process(database, recipe, queue, [...withoutId, ...messages, ...database.payments]);
    for (const { body } of withoutId) assert.equal(await database.deadLettersWithBody(body), 1);
    for (const { id } of messages) assert.equal(await database.deadLettersWithId(id), 1);
    await database.assertPaidOnce();
  }));
