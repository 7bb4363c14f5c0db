/** NATS: NATS_URL. */

import {
  AckPolicy, jetstream, jetstreamManager, type ConsumerConfig,
} from "@nats-io/jetstream";
import { connect, headers, nanos, type NatsConnection } from "@nats-io/transport-node";

import { required } from "../environment.js";
import type { Broker } from "./proof.js";

const STREAM = "PAYMENTS";
const SUBJECT = "payments";
const CONSUMER = "billing";
/** The time until the messages of a killed process are delivered again. */
const ACK_WAIT_MS = 2000;

interface NatsStream extends Broker {
  /** Creates the consumer anew. */
  configure(config: Partial<ConsumerConfig>): Promise<void>;
  deleteConsumer(): Promise<void>;
}

/** Returns the stream. */
export function nats(): NatsStream {
  return {
    configure: (config) =>
      withConnection(async (connection) => {
        const { consumers } = await jetstreamManager(connection);
        await consumers.delete(STREAM, CONSUMER);
        await consumers.add(STREAM, {
          durable_name: CONSUMER,
          ack_policy: AckPolicy.Explicit,
          ...config,
        });
      }),
    deleteConsumer: () =>
      withConnection(async (connection) => {
        const { consumers } = await jetstreamManager(connection);
        await consumers.delete(STREAM, CONSUMER);
      }),
    reset: () =>
      withConnection(async (connection) => {
        const { streams, consumers } = await jetstreamManager(connection);
        const known = await streams.names().next();
        if (known.includes(STREAM)) await streams.delete(STREAM);
        await streams.add({ name: STREAM, subjects: [SUBJECT] });
        await consumers.add(STREAM, {
          durable_name: CONSUMER,
          ack_policy: AckPolicy.Explicit,
          ack_wait: nanos(ACK_WAIT_MS),
        });
      }),
    publish: (messages) =>
      withConnection(async (connection) => {
        const stream = jetstream(connection);
        for (const { id, body } of messages) {
          const header = headers();
          if (typeof id === "string") header.set("message-id", id);
          await stream.publish(SUBJECT, body, { headers: header });
        }
      }),
    isDrained: () =>
      withConnection(async (connection) => {
        const { consumers } = await jetstreamManager(connection);
        const { num_pending, num_ack_pending } = await consumers.info(STREAM, CONSUMER);
        return num_pending === 0 && num_ack_pending === 0;
      }),
  };
}

async function withConnection<T>(work: (connection: NatsConnection) => Promise<T>): Promise<T> {
  const connection = await connect({ servers: required("NATS_URL") });
  try {
    return await work(connection);
  } finally {
    await connection.close();
  }
}
