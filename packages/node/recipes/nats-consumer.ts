/**
 * A consumer of NATS JetStream that charges each payment once.
 *
 * `NATS_URL=nats://… node nats-consumer.js` consumes the stream `PAYMENTS` with its durable
 * consumer `billing`, which acknowledges explicitly and has no `max_deliver`. The process ends
 * after an error. Start it again then: NATS delivers the messages that are not acknowledged again.
 */

import { AckPolicy, jetstream, type JsMsg } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";

import { poolOf, required } from "./environment.js";
import { handle } from "./payments.js";

const STREAM = "PAYMENTS";
const CONSUMER = "billing";

const pool = poolOf(1);
const connection = await connect({ servers: required("NATS_URL") });
const consumer = await jetstream(connection).consumers.get(STREAM, CONSUMER);
const { ack_policy, max_deliver } = (await consumer.info()).config;
if (ack_policy !== AckPolicy.Explicit || (max_deliver ?? -1) > 0) {
  // NATS does not deliver a message again after `max_deliver` attempts, so it would be lost.
  throw new Error(`${CONSUMER} must acknowledge explicitly and have no limit of deliveries`);
}

/**
 * Returns the id in the headers. Without one, the position in the stream is the id, with its time,
 * because a stream that is created again repeats its positions. A message that its producer sends
 * twice has two positions, so only an id finds this duplicate.
 */
function idOf(message: JsMsg): string {
  const { headers, info } = message;
  const position = [info.stream, info.streamSequence, info.timestampNanos].join("/");
  const ids = ["message-id", "Nats-Msg-Id"].map((name) => headers?.get(name));
  // A header that is missing is an empty text.
  return ids.find((id) => id !== undefined && id !== "") ?? position;
}

const messages = await consumer.consume({
  // A message that waits here longer than the `ack_wait` of the consumer is delivered twice.
  max_messages: 10,
  // Otherwise the process waits without an error after the consumer or the stream is deleted.
  abort_on_missing_resource: true,
});
for await (const message of messages) {
  await handle(pool, { id: idOf(message), body: message.data, source: message.subject });
  await message.ackAck(); // After the commit.
}
throw new Error("the connection to NATS is lost");
