/**
 * The types of executors. `tsc` compiles this file, and nothing executes it: a line after
 * `@ts-expect-error` that compiles is an error.
 */

import type { NodePgDatabase } from "drizzle-orm/node-postgres";
import type { PostgresJsDatabase } from "drizzle-orm/postgres-js";
import type { Knex } from "knex";
import type { ControlledTransaction, Kysely, Transaction } from "kysely";
import type pg from "pg";
import type postgres from "postgres";

import { idem, lease, process, transactions, type Settlement } from "../../src/index.js";

type DrizzleTransactionOf<Db extends NodePgDatabase | PostgresJsDatabase> = Parameters<
  Parameters<Db["transaction"]>[0]
>[0];

interface Accounts {
  account: { id: number };
}

export interface Objects {
  client: pg.Client;
  poolClient: pg.PoolClient;
  transactionSql: postgres.TransactionSql;
  transactionSqlWithTypes: postgres.TransactionSql<{ day: Date }>;
  drizzleTx: DrizzleTransactionOf<NodePgDatabase>;
  drizzlePostgresTx: DrizzleTransactionOf<PostgresJsDatabase>;
  trx: Knex.Transaction;
  kyselyTrx: Transaction<Accounts>;
  controlled: ControlledTransaction<Accounts>;
  own: { query(text: string, values: unknown[]): Promise<{ rows: { n: number }[] }> };
  ownPooled: {
    query(text: string, values: unknown[]): Promise<{ rows: { n: number }[] }>;
    connect(): Promise<void>;
    release(): void;
  };
  pool: pg.Pool;
  wrapper: {
    query(text: string, values: unknown[]): Promise<{ rows: unknown[] }>;
    connect(): Promise<pg.PoolClient>;
  };
  sql: postgres.Sql;
  db: NodePgDatabase & { $client: pg.Pool };
  dbWithoutClient: NodePgDatabase;
  postgresDb: PostgresJsDatabase & { $client: postgres.Sql };
  knex: Knex;
  kysely: Kysely<Accounts>;
}

export function transactionsAreExecutors(o: Objects): void {
  idem(o.client);
  idem(o.poolClient);
  idem(o.transactionSql);
  idem(o.transactionSqlWithTypes);
  idem(o.drizzleTx);
  idem(o.drizzlePostgresTx);
  idem(o.trx);
  idem(o.kyselyTrx);
  idem(o.controlled);
  idem(o.own);
  idem(o.ownPooled);
}

export function poolsAreNoExecutors(o: Objects): void {
  // @ts-expect-error A Pool of node-postgres.
  idem(o.pool);
  // @ts-expect-error A wrapper of a pool.
  idem(o.wrapper);
  // @ts-expect-error The sql of postgres.js.
  idem(o.sql);
  // @ts-expect-error A db of Drizzle.
  idem(o.db);
  // @ts-expect-error A db of Drizzle whose type does not have the client.
  idem(o.dbWithoutClient);
  // @ts-expect-error A db of Drizzle over postgres.js.
  idem(o.postgresDb);
  // @ts-expect-error Knex outside of a transaction.
  idem(o.knex);
  // @ts-expect-error Kysely outside of a transaction.
  idem(o.kysely);
  // @ts-expect-error No executor.
  idem({});
  // @ts-expect-error No executor.
  idem("postgresql://localhost");
}

export async function connectionsAreNoPools(o: Objects): Promise<void> {
  const message = { id: "m", destination: "d" };
  // @ts-expect-error A connection has no transaction of its own.
  await process(o.poolClient, message, async () => {});
  // @ts-expect-error A transaction is no pool.
  await process(o.transactionSql, message, async () => {});
  // @ts-expect-error A connection is no pool.
  await lease(o.client, message);
  // @ts-expect-error Kysely is no pool that this package knows.
  transactions(o.kysely);
}

export async function handlersGetTheClientOfTheirPool(o: Objects): Promise<void> {
  const message = { id: "m", destination: "d" };
  await process(o.pool, message, async (client) => {
    const exact: pg.ClientBase = client;
    await exact.query("SELECT 1");
    await idem(client).tryClaim("m", "d");
    // @ts-expect-error The pool releases the client.
    client.release();
    // @ts-expect-error The pool ends the client.
    client.end();
    // @ts-expect-error The client is no any.
    client.nothing();
  });
  await process(o.sql, message, async (tx) => {
    const exact: postgres.TransactionSql = tx;
    await exact`SELECT 1`;
    // @ts-expect-error The transaction is no any.
    tx.nothing();
    return [{ topic: "t", payload: 1 }];
  });
  const n: number = await transactions(o.pool)(async (client) => {
    await idem(client).tryClaim(1n, "d");
    return 1;
  });
  await using held = await lease(o.sql, message);
  if (held.outcome === "in_progress") {
    const pause: number | null = held.retryAfterMs;
    // @ts-expect-error A message that is not leased has no token.
    held.token;
    console.log(pause, n);
  } else if (held.outcome === "acquired") {
    await held.complete(async (tx) => {
      await tx`SELECT 1`;
      return undefined;
    });
    const found: string = await held.once("s", null, () => Promise.resolve("a"), {
      onUnknown: (call) => Promise.resolve({ found: call.idempotencyKey }),
    });
    // @ts-expect-error onUnknown is required.
    await held.once("s", found, () => Promise.resolve("a"));
    // @ts-expect-error Not one of the values of onUnknown.
    await held.once("s", found, () => Promise.resolve("a"), { onUnknown: "ignore" });
  }
}

export async function outcomesAreNarrowed(o: Objects): Promise<string> {
  const claim = await idem(o.client).claim("m", "d");
  switch (claim.outcome) {
    case "claimed":
    case "in_progress":
    case "expired":
      // @ts-expect-error Only a duplicate and a mismatch have a time.
      claim.handledAt;
      return claim.outcome;
    case "duplicate":
    case "mismatch":
      return String(claim.handledAt?.getTime());
  }
}

export async function eachOutcomeHasASettlement(o: Objects): Promise<string> {
  const claimed: Settlement = (await idem(o.client).claim("m", "d")).settlement;
  const acquired: Settlement = (await idem(o.client).acquire("m", "d")).settlement;
  const processed = await process(o.pool, { id: "m", destination: "d" }, async () => {});
  await using held = await lease(o.pool, { id: "m", destination: "d" });
  if (processed.settlement === "redeliver") processed.retryAfterMs?.toFixed();
  switch (held.settlement) {
    case "acknowledge":
    case "reject":
      return claimed;
    case "redeliver":
      return acquired;
  }
}
