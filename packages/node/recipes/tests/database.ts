/**
 * The accounts, and what a test sees of the sessions of a consumer. PGHOST, PGPORT, PGUSER and
 * PGDATABASE define a database with the extension.
 */

import assert from "node:assert/strict";

import pg from "pg";

import { CENTS, DESTINATION, HELD, PAYMENTS, payments, type Payment } from "./payments.js";
import { until } from "./until.js";

/** In the schema `without_claims` each claim succeeds, and effects are not recorded. */
const SCHEMA = `
  DROP TABLE IF EXISTS account;
  DROP SCHEMA IF EXISTS without_claims CASCADE;
  CREATE TABLE account (id int PRIMARY KEY, message_id text, balance bigint NOT NULL DEFAULT 0);
  CREATE SCHEMA without_claims;
  CREATE FUNCTION without_claims.idem_try_claim(text, text) RETURNS boolean
    LANGUAGE sql AS 'SELECT true';
  CREATE FUNCTION without_claims.idem_record_effects(text, text, jsonb) RETURNS uuid[]
    LANGUAGE sql AS 'SELECT ARRAY[]::uuid[]';
`;

/** Makes the first two charges fail. A rollback does not reset a sequence. */
const FAILURES = `
  DROP SEQUENCE IF EXISTS attempt;
  CREATE SEQUENCE attempt;
  CREATE FUNCTION pg_temp.fail() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      IF nextval('attempt') <= 2 THEN RAISE 'attempt % fails', lastval(); END IF;
      RETURN NEW;
    END $$;
  CREATE TRIGGER fail BEFORE UPDATE ON account FOR EACH ROW EXECUTE FUNCTION pg_temp.fail();
`;

/** The environment of a consumer without claims, which is the broken variant. */
export const WITHOUT_CLAIMS = { PGOPTIONS: "-c search_path=without_claims,public" };

/** The statements in which a consumer waits before a commit, and after a commit. */
export const CHARGE = "UPDATE account";
export const PAUSE = "SELECT pg_advisory_lock_shared";

/** A lock that a test holds. */
export interface Held {
  release(): Promise<void>;
}

export class Database {
  readonly payments: readonly Payment[] = payments();
  readonly #client: pg.Client;
  readonly #held: Held[] = [];

  private constructor(client: pg.Client) {
    this.#client = client;
  }

  /** Creates the accounts. `close` must be called. */
  static async open(): Promise<Database> {
    const client = new pg.Client();
    await client.connect();
    const database = new Database(client);
    await client.query(SCHEMA);
    const ids = database.payments.map(({ id }) => id);
    const insert = `INSERT INTO account SELECT number - 1, id
                    FROM unnest($1::text[]) WITH ORDINALITY AS payment (id, number)`;
    await client.query(insert, [ids]);
    return database;
  }

  async close(): Promise<void> {
    for (const held of this.#held) await held.release();
    await this.#client.end();
  }

  async one(text: string, ...values: unknown[]): Promise<unknown> {
    const query = { text, values, rowMode: "array" as const };
    const { rows } = await this.#client.query<unknown[]>(query);
    return rows[0]?.[0];
  }

  /** Returns how often each payment was charged, in the order of the accounts. */
  async charges(): Promise<number[]> {
    const text = "SELECT -balance / $1 AS charges FROM account ORDER BY id";
    const { rows } = await this.#client.query<{ charges: string }>(text, [CENTS]);
    return rows.map(({ charges }) => Number(charges));
  }

  /** The balances are exact, and each payment has one receipt. */
  async assertPaidOnce(): Promise<void> {
    assert.deepEqual(await this.charges(), Array<number>(PAYMENTS).fill(1));
    const text = `SELECT count(*) FROM account
                  WHERE (SELECT count(*) FROM idem_effects(message_id, $1)) = 1`;
    assert.equal(Number(await this.one(text, DESTINATION)), PAYMENTS, "payments with one receipt");
  }

  /** Only the payments of the locked accounts were charged, and each of them once. */
  async assertHeldPaidOnce(): Promise<void> {
    const expected = Array<number>(PAYMENTS).fill(0).fill(1, ...HELD);
    assert.deepEqual(await this.charges(), expected);
  }

  async failTwice(): Promise<void> {
    await this.#client.query(FAILURES);
  }

  /** Makes every charge of this account fail. */
  async forbidOverdraft(account: number): Promise<void> {
    const check = `CONSTRAINT overdraft CHECK (balance >= 0 OR id <> ${String(account)})`;
    await this.#client.query(`ALTER TABLE account ADD ${check}`);
  }

  async deadLettersWithId(id: string): Promise<number> {
    const text = "SELECT count(*) FROM idem.dead_letters WHERE destination = $1 AND id = $2";
    return Number(await this.one(text, DESTINATION, id));
  }

  async deadLettersWithBody(body: Uint8Array): Promise<number> {
    const text = "SELECT count(*) FROM idem.dead_letters WHERE destination = $1 AND payload = $2";
    return Number(await this.one(text, DESTINATION, body));
  }

  /** Waits until a session of the consumer waits for a lock in a statement. */
  async untilWaiting(session: string, statement: string): Promise<void> {
    const text = `SELECT count(*) > 0 FROM pg_stat_activity
                  WHERE application_name = $1 AND wait_event_type = 'Lock'
                    AND starts_with(query, $2)`;
    const isWaiting = async () => (await this.one(text, session, statement)) === true;
    await until(`the consumer waits in ${statement}`, isWaiting);
  }

  /** Ends the sessions that a process has now, as a restart of the server does. */
  async loseConnections(session: string): Promise<void> {
    const sessions = "SELECT array_agg(pid) FROM pg_stat_activity WHERE application_name = $1";
    const lost = await this.one(sessions, session);
    assert.ok(Array.isArray(lost), "the consumer has no session");
    await this.one("SELECT count(pg_terminate_backend(pid)) FROM unnest($1::int[]) AS pid", lost);
    const text = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY ($1::int[])";
    await until("the connections are lost", async () => Number(await this.one(text, lost)) === 0);
  }

  /** Ends the sessions of a process. A server notices the end of its client late. */
  async endSessions(session: string): Promise<void> {
    const text = `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                  WHERE application_name = $1`;
    const isEnded = async () => Number(await this.one(text, session)) === 0;
    await until("the sessions have ended", isEnded);
  }

  /** Locks the accounts in the middle. */
  async lockAccounts(): Promise<Held> {
    return this.#hold("SELECT FROM account WHERE id >= $1 AND id < $2 FOR UPDATE", [...HELD]);
  }

  /** Stops consumers after a commit. See `pause.ts`. */
  async pause(): Promise<Held> {
    return this.#hold("SELECT pg_advisory_xact_lock(1)", []);
  }

  /** Executes a statement in a transaction that `release` ends. */
  async #hold(text: string, values: unknown[]): Promise<Held> {
    const client = new pg.Client();
    await client.connect();
    const held = { release: () => client.end() };
    this.#held.push(held);
    await client.query("BEGIN");
    await client.query(text, values);
    return held;
  }
}
