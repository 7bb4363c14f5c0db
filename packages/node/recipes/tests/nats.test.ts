/** The consumer of `nats-consumer.ts`, with NATS JetStream. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { AckPolicy } from "@nats-io/jetstream";

import { running } from "./consumer.js";
import { nats } from "./nats.js";
import { malformed } from "./payments.js";
import { process, prove, withDatabase } from "./proof.js";
import { until } from "./until.js";

const stream = nats();
const recipe = { name: "nats-consumer", environment: {}, endsAfterFailure: true };

prove(recipe, stream);

test("message without an id is claimed by its position", () =>
  withDatabase(stream, async (database) => {
    const messages = database.payments.map(({ body }) => ({ id: null, body }));
    await process(database, recipe, stream, messages);
    assert.deepEqual([...new Set(await database.charges())], [1]);
  }));

test("consumer that can lose messages is not used", () =>
  withDatabase(stream, async (database) => {
    for (const config of [{ max_deliver: 2 }, { ack_policy: AckPolicy.None }]) {
      await stream.configure(config);
      assert.equal(await running(database, recipe, (consumer) => consumer.end()), 1);
    }
  }));

test("deleted consumer ends the process", () =>
  withDatabase(stream, async (database) => {
    const [first] = database.payments;
    await running(database, recipe, async (consumer) => {
      await stream.publish([first ?? assert.fail()]);
      await until("the message is acknowledged", () => stream.isDrained());
      await stream.deleteConsumer();
      assert.equal(await consumer.end(), 1);
    });
  }));

test("malformed messages become dead letters", () =>
  withDatabase(stream, async (database) => {
    const messages = malformed();
    const ids = ["replaced \uFFFD", "x".repeat(1025)];
    const invalid = database.payments.slice(0, ids.length).map(({ body }, n) => ({
      id: ids[n] ?? null,
      body,
    }));
    await process(database, recipe, stream, [...invalid, ...messages, ...database.payments]);
    for (const { body } of invalid) assert.equal(await database.deadLettersWithBody(body), 1);
    for (const { id } of messages) assert.equal(await database.deadLettersWithId(id), 1);
    await database.assertPaidOnce();
  }));
