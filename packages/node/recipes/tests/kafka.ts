/** Kafka: KAFKA_BROKERS. */

import { Kafka, logLevel, type Message } from "kafkajs";

import { required } from "../environment.js";
import type { Sent } from "./payments.js";
import type { Broker } from "./proof.js";

const TOPIC = "payments";
const GROUP = "billing";

/** Returns the topic. */
export function kafka(): Broker {
  const brokers = required("KAFKA_BROKERS").split(",");
  const cluster = new Kafka({ brokers, logLevel: logLevel.NOTHING });
  const admin = cluster.admin();
  const isDrained = async () => {
    await admin.connect();
    const [committed] = await admin.fetchOffsets({ groupId: GROUP, topics: [TOPIC] });
    const ends = await admin.fetchTopicOffsets(TOPIC);
    await admin.disconnect();
    return ends.every(({ partition, low, high }) => {
      const found = committed?.partitions.find((other) => other.partition === partition);
      return high === low || found?.offset === high;
    });
  };
  return {
    isDrained,
    // The mock cluster cannot delete messages.
    async reset() {
      if (!(await isDrained())) throw new Error("the topic has messages of a test that failed");
    },
    async publish(messages) {
      const producer = cluster.producer();
      await producer.connect();
      await producer.send({ topic: TOPIC, messages: messages.map(record) });
      await producer.disconnect();
    },
  };
}

function record({ id, body }: Sent): Message {
  const headers = id === null ? {} : { "message-id": Buffer.from(id) };
  return { value: Buffer.from(body), headers };
}
