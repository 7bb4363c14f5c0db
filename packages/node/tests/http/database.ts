/** What the tests do and see in the database of a service. */

import assert from "node:assert/strict";
import { randomInt } from "node:crypto";
import { after } from "node:test";

import pg from "pg";

import { createDatabase, READ_COMMITTED } from "../server.js";
import type { Config } from "./config.js";
import { until } from "./state.js";

/** Creates the database of a file of tests. Its connections see what is committed. */
export async function openDatabase(): Promise<pg.Pool> {
  const database = await createDatabase();
  process.env["PGDATABASE"] = database;
  const pool = new pg.Pool({ database, max: 6, options: READ_COMMITTED });
  pool.on("error", () => undefined);
  after(() => pool.end());
  return pool;
}

/**
 * A session waits for a lock of the test. Other waits are short: for the extension of a table to
 * which other tests write too.
 */
export const WAITING = "wait_event_type = 'Lock' AND wait_event IN ('advisory', 'relation')";

/** Returns a connection of its own, so that locks leave the connections of the pool free. */
async function connect(): Promise<pg.Client> {
  const client = new pg.Client();
  await client.connect();
  return client;
}

/** The table and the destination of a service. */
export class Work {
  readonly config: Config;
  readonly pool: pg.Pool;
  /** The key of the advisory lock for which handlers (x-lock) and commits wait. */
  readonly lock = randomInt(1 << 30);

  private constructor(config: Config, pool: pg.Pool) {
    this.config = config;
    this.pool = pool;
  }

  static async create(config: Config, pool: pg.Pool): Promise<Work> {
    await pool.query(`CREATE TABLE ${config.table} (id text)`);
    return new Work(config, pool);
  }

  async value(text: string, values: unknown[] = []): Promise<unknown> {
    const { rows } = await this.pool.query<unknown[]>({ text, values, rowMode: "array" });
    return rows[0]?.[0];
  }

  /** Returns the number of rows that handlers inserted, for all requests or for one body. */
  async rows(body?: string): Promise<number> {
    const condition = body === undefined ? "" : "WHERE id = $1";
    const text = `SELECT count(*)::int FROM ${this.config.table} ${condition}`;
    return Number(await this.value(text, body === undefined ? [] : [body]));
  }

  async claims(): Promise<number> {
    const text = "SELECT count(*)::int FROM idem.inbox WHERE destination = $1";
    return Number(await this.value(text, [this.config.destination]));
  }

  async assertUntouched(): Promise<void> {
    assert.deepEqual([await this.rows(), await this.claims()], [0, 0]);
  }

  /** Returns the number of the service's sessions for which the condition is true. */
  async sessions(condition: string): Promise<number> {
    const text =
      "SELECT count(*)::int FROM pg_stat_activity " +
      `WHERE application_name = $1 AND datname = current_database() AND ${condition}`;
    return Number(await this.value(text, [this.config.name]));
  }

  untilNoSession(condition = "true"): Promise<void> {
    return until(async () => (await this.sessions(condition)) === 0);
  }

  /** Waits until no session of the service is in a transaction. */
  untilQuiet(): Promise<void> {
    return this.untilNoSession("state <> 'idle'");
  }

  /** Waits until a session of the service waits for a lock of the test. */
  untilWaiting(): Promise<void> {
    return until(async () => (await this.sessions(WAITING)) > 0);
  }

  /** Terminates sessions of the service. Returns their number. */
  async terminate(condition = "true"): Promise<number> {
    const text =
      "SELECT count(pg_terminate_backend(pid))::int FROM pg_stat_activity " +
      `WHERE application_name = $1 AND datname = current_database() AND ${condition}`;
    return Number(await this.value(text, [this.config.name]));
  }

  /** Lets a COMMIT with writes wait while the test holds the lock. */
  async waitAtCommit(): Promise<void> {
    const { table } = this.config;
    await this.pool.query(
      `CREATE FUNCTION ${table}_wait() RETURNS trigger LANGUAGE plpgsql AS $$
       BEGIN PERFORM pg_advisory_xact_lock_shared(${String(this.lock)}); RETURN NULL; END $$;
       CREATE CONSTRAINT TRIGGER waits AFTER INSERT ON ${table} DEFERRABLE INITIALLY DEFERRED
       FOR EACH ROW EXECUTE FUNCTION ${table}_wait()`,
    );
  }

  /** Holds the lock while `work` is executed, which can release it before. */
  async locked<T>(work: (unlock: () => Promise<unknown>) => Promise<T>): Promise<T> {
    const client = await connect();
    const key = String(this.lock);
    let isHeld = true;
    const unlock = async () => {
      if (isHeld) await client.query(`SELECT pg_advisory_unlock(${key})`);
      isHeld = false;
    };
    try {
      await client.query(`SELECT pg_advisory_lock(${key})`);
      return await work(unlock);
    } finally {
      await client.end();
    }
  }

  /** Locks the tables of idem with this prefix while `work` is executed. */
  async tablesLocked<T>(prefix: string, work: () => Promise<T>): Promise<T> {
    const client = await connect();
    try {
      await client.query("BEGIN");
      const { rows } = await client.query<{ names: string }>(
        "SELECT string_agg(oid::regclass::text, ', ') AS names FROM pg_class WHERE relkind = 'r' " +
          "AND relnamespace = 'idem'::regnamespace AND starts_with(relname, $1)",
        [prefix],
      );
      await client.query(`LOCK TABLE ${String(rows[0]?.names)} IN ACCESS EXCLUSIVE MODE`);
      return await work();
    } finally {
      await client.end();
    }
  }

  /** Returns all recorded responses as text. */
  async recorded(): Promise<string> {
    const text =
      "SELECT coalesce(string_agg(c.response::text, ' '), '') " +
      "FROM idem.inbox i, idem_calls(i.id, i.destination) c WHERE i.destination = $1";
    return String(await this.value(text, [this.config.destination]));
  }
}
