/**
 * A consumer of RabbitMQ with amqplib that charges each payment once.
 *
 * `AMQP_URL=amqp://… node amqplib-consumer.js` consumes the queue `payments`. The process ends
 * after an error, for example a lost connection. Start it again then: RabbitMQ delivers the
 * messages that are not acknowledged again.
 */

import { connect, type ConsumeMessage } from "amqplib";

import { poolOf, required } from "./environment.js";
import { handle } from "./payments.js";

const QUEUE = "payments";
/** The number of messages that are processed at a time. */
const PREFETCH = 10;

const pool = poolOf(PREFETCH);
const connection = await connect(required("AMQP_URL"));
const channel = await connection.createChannel();
await channel.prefetch(PREFETCH);
await channel.assertQueue(QUEUE, { durable: true });

async function work(message: ConsumeMessage): Promise<void> {
  const { content: body, properties } = message;
  await handle(pool, { id: properties.messageId, body, source: QUEUE });
  channel.ack(message); // After the commit.
}

/** An error ends the process, because nothing catches it. */
await new Promise<never>((_, reject) => {
  connection.on("error", reject);
  connection.on("close", () => {
    reject(new Error("the connection to RabbitMQ is lost"));
  });
  channel.on("error", reject);
  const consumed = channel.consume(QUEUE, (message) => {
    if (message === null) reject(new Error("RabbitMQ has cancelled the consumer"));
    else work(message).catch(reject);
  });
  consumed.catch(reject);
});
