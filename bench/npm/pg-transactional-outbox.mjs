// The inbox of pg-transactional-outbox, read through logical replication. Its polling listener is
// much slower when thousands of messages wait, because each poll sorts all of them.

import { randomUUID } from "node:crypto";
import outbox from "pg-transactional-outbox";
import { WORKERS, countdown, inBatches, pool, work } from "./job.mjs";

const BATCH = 100;
const INBOX = { outboxOrInbox: "inbox", schema: "public", table: "inbox" };
const PUBLICATION = "inbox_publication";
const SLOT = "inbox_slot";

const connection = { host: process.env.PGHOST, user: process.env.PGUSER, database: process.env.PGDATABASE };

const config = {
  outboxOrInbox: "inbox",
  dbListenerConfig: connection,
  dbHandlerConfig: { ...connection, max: WORKERS },
  settings: {
    dbSchema: INBOX.schema,
    dbTable: INBOX.table,
    dbPublication: PUBLICATION,
    dbReplicationSlot: SLOT,
    // These protections are off: each of them executes another transaction for a message.
    enableMaxAttemptsProtection: false,
    enablePoisonousMessageProtection: false,
  },
};

export const settings = {
  listener: "replication",
  concurrency: "full",
  handlerConnections: WORKERS,
  enableMaxAttemptsProtection: false,
  enablePoisonousMessageProtection: false,
  messagesStoredPerTransaction: BATCH,
};

const logger = { ...outbox.getDisabledLogger(), error: (...said) => console.error(...said) };

export async function setup() {
  const database = pool(1);
  const role = { database: connection.database, listenerRole: connection.user };
  await database.query(outbox.DatabaseSetup.dropAndCreateTable(INBOX));
  await database.query(outbox.DatabaseSetup.setupReplicationCore({ ...INBOX, ...role, publication: PUBLICATION }));
  await database.query(`SELECT pg_create_logical_replication_slot('${SLOT}', 'pgoutput')`);
  await database.end();
}

export async function enqueue(from, count, clock) {
  const store = outbox.initializeMessageStorage(config, logger);
  const database = pool();
  const inTransaction = async (messages) => {
    const client = await database.connect();
    await client.query("BEGIN");
    for (const payload of messages) {
      const aggregateId = String(payload.account);
      await store({ id: randomUUID(), aggregateType: "stock", messageType: "reserved", aggregateId, payload }, client);
    }
    await client.query("COMMIT");
    client.release();
  };
  await clock(() => inBatches(from, count, BATCH, inTransaction));
  await database.end();
}

export async function drain(count) {
  const { done, one } = countdown(count);
  const handler = {
    aggregateType: "stock",
    messageType: "reserved",
    handle: async ({ payload }, client) => {
      await work(client, payload);
      one();
    },
  };
  const concurrencyStrategy = outbox.createReplicationFullConcurrencyController();
  const [stop] = outbox.initializeReplicationMessageListener(config, [handler], logger, { concurrencyStrategy });
  await done;
  // Wait for the commits of the last messages.
  const database = pool(1);
  while ((await database.query(left)).rows[0].count !== "0") await new Promise((resolve) => setTimeout(resolve, 10));
  await database.end();
  await stop();
}

export const left = "SELECT count(*) FROM inbox WHERE processed_at IS NULL";
