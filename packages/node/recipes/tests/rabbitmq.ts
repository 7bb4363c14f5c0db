/** RabbitMQ: AMQP_URL, and the environment of rabbitmqctl for the same server. */

import { execFile } from "node:child_process";
import { promisify } from "node:util";

import { connect, type ConfirmChannel } from "amqplib";

import { required } from "../environment.js";
import type { Sent } from "./payments.js";
import type { Broker } from "./proof.js";

const RABBITMQCTL = "/usr/lib/rabbitmq/bin/rabbitmqctl";

/** Returns the queue with this name. */
export function rabbitMq(queue: string): Broker & { loseConnections(): Promise<void> } {
  return {
    /** Closes all connections of the server. */
    loseConnections: async () => {
      await control("close_all_connections", "closed by a test");
    },
    reset: () =>
      withChannel(async (channel) => {
        await channel.assertQueue(queue, { durable: true });
        await channel.purgeQueue(queue);
      }),
    publish: (messages) => withChannel((channel) => publish(channel, queue, messages)),
    isDrained: async () => (await count(queue)) === 0,
  };
}

async function publish(
  channel: ConfirmChannel,
  queue: string,
  messages: readonly Sent[],
): Promise<void> {
  for (const { id, body } of messages) {
    const messageId = typeof id === "string" ? { messageId: id } : {};
    channel.sendToQueue(queue, Buffer.from(body), { persistent: true, ...messageId });
  }
  await channel.waitForConfirms();
}

async function withChannel(work: (channel: ConfirmChannel) => Promise<void>): Promise<void> {
  const connection = await connect(required("AMQP_URL"));
  try {
    await work(await connection.createConfirmChannel());
  } finally {
    await connection.close();
  }
}

/** Returns the number of messages in a queue, with those that are not acknowledged. */
async function count(queue: string): Promise<number> {
  const list = await control("list_queues", "--no-table-headers", "name", "messages");
  const lines = list.trim().split("\n").map((line) => line.split("\t"));
  return Number(lines.find(([name]) => name === queue)?.[1]);
}

/** Executes rabbitmqctl, and returns its output. */
async function control(...command: string[]): Promise<string> {
  const env = { ...process.env, HOME: required("RABBITMQ_HOME"), LC_ALL: "C.UTF-8" };
  const { stdout } = await promisify(execFile)(RABBITMQCTL, ["--quiet", ...command], { env });
  return stdout;
}
