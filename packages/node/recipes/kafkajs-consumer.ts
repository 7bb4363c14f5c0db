/**
 * A consumer of Kafka with kafkajs that charges each payment once.
 *
 * `KAFKA_BROKERS=… node kafkajs-consumer.js` consumes the topic `payments`. The process ends after
 * an error, for example a lost connection. Start it again then: it continues at the last committed
 * offset.
 */

import { Kafka, logLevel, type IHeaders, type KafkaMessage } from "kafkajs";

import { poolOf, required } from "./environment.js";
import { handle } from "./payments.js";

const TOPIC = "payments";
const PARTITIONS_AT_A_TIME = 4;

const pool = poolOf(PARTITIONS_AT_A_TIME);
const brokers = required("KAFKA_BROKERS").split(",");
const kafka = new Kafka({ brokers, logLevel: logLevel.ERROR });
const consumer = kafka.consumer({
  groupId: "billing",
  // The time until the partitions of a killed process are assigned to another one.
  sessionTimeout: Number(process.env["SESSION_TIMEOUT_MS"] ?? "45000"),
  heartbeatInterval: 1000,
  // Otherwise kafkajs repeats a batch that failed, or stops without an end of the process.
  retry: { restartOnFailure: () => Promise.resolve(false) },
});

/** Returns the id in the headers, or null if there is none. */
function idOf(headers: IHeaders = {}): string | null {
  const value = [headers["message-id"]].flat()[0];
  return value === undefined || value.length === 0 ? null : value.toString();
}

/**
 * Returns the position and the time. A topic that is created again repeats its positions. A message
 * that its producer sends twice has two positions, so only an id finds this duplicate.
 */
function positionOf(partition: number, { offset, timestamp }: KafkaMessage): string {
  return [TOPIC, partition, offset, timestamp].join("/");
}

async function work(partition: number, message: KafkaMessage): Promise<void> {
  const id = idOf(message.headers) ?? positionOf(partition, message);
  const body = message.value ?? new Uint8Array();
  const next = { topic: TOPIC, partition, offset: String(BigInt(message.offset) + 1n) };
  await handle(pool, { id, body, source: TOPIC });
  await consumer.commitOffsets([next]); // After the commit of the transaction.
}

await consumer.connect();
// Without this, the messages from before the group's first commit are skipped.
await consumer.subscribe({ topics: [TOPIC], fromBeginning: true });

/** An error ends the process, because nothing catches it. */
await new Promise<never>((_, reject) => {
  consumer.on("consumer.crash", ({ payload }) => {
    reject(payload.error);
  });
  const run = consumer.run({
    // Otherwise the offset of a message can be committed before its transaction.
    autoCommit: false,
    partitionsConsumedConcurrently: PARTITIONS_AT_A_TIME,
    eachMessage: ({ partition, message }) => {
      const worked = work(partition, message);
      // The process ends before kafkajs repeats the message.
      worked.catch(reject);
      return worked;
    },
  });
  run.catch(reject);
});
