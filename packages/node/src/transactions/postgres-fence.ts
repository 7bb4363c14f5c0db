/**
 * Keeps the statements of a transaction of postgres.js inside of it.
 *
 * When a connection is lost, `sql.begin` fails at once, and its callback continues. postgres.js
 * 3.4.9 sends the next statement of the callback on the connection that replaces the lost one,
 * where it is committed alone or becomes a part of another transaction. Before there is another
 * connection, the statement ends the process with a TypeError.
 *
 * After a ROLLBACK or COMMIT of the callback, postgres.js gives the connection to the next
 * transaction, and the callback goes on to use it.
 */

import { readFile } from "node:fs";

import { serverError } from "../driver-error.js";
import { IdemError } from "../errors.js";
import { hasEndedTransaction } from "./mark.js";
import type { Fence } from "./pool.js";
import { isQuery, observe, type Query } from "./postgres-query.js";

/** What this package needs of the `sql` of a transaction. */
export interface PostgresClient {
  unsafe(
    text: string,
    values: unknown[],
    options: { prepare: boolean },
  ): PromiseLike<unknown[]>;
  savepoint<T>(name: string, work: (client: PostgresClient) => Promise<T>): Promise<T>;
}

type Work = (client: PostgresClient) => unknown;

/**
 * After the error of a socket, its event `close` makes `sql.begin` fail. It comes at the end of the
 * turn of the event loop, or with TLS one later.
 */
const TURNS_UNTIL_CLOSED = 3;

/** Sends no statement after the transaction has ended or its connection is lost. */
export class PostgresFence implements Fence<PostgresClient> {
  wasUsedLate = false;
  /** Fails when a statement of the work ends the transaction. */
  readonly left: Promise<never>;
  readonly #ended: Promise<never>;
  /** The statements that have no result. */
  readonly #open = new Set<Query>();
  #hasEnded = false;
  #failLeft: (error: IdemError) => void = ignore;
  #failEnded: (error: IdemError) => void = ignore;
  /** Pending while the connection may be lost, because a statement failed without the server. */
  #suspicion: Promise<void> | undefined;

  constructor() {
    this.left = new Promise((_, reject) => (this.#failLeft = reject));
    this.#ended = new Promise((_, reject) => (this.#failEnded = reject));
    for (const promise of [this.left, this.#ended]) promise.catch(ignore);
  }

  close(): void {
    this.#hasEnded = true;
    this.#failEnded(hasEnded());
  }

  end(): void {
    if (this.#hasEnded) return;
    this.close();
    // postgres.js forgets the statements that wait for their turn.
    for (const query of this.#open) query.reject(hasEnded());
  }

  /**
   * Executes `work`. After the end the returned promise stays pending, because postgres.js would
   * send ROLLBACK or COMMIT.
   */
  async unlessEnded<T>(work: () => Promise<T>): Promise<T> {
    try {
      const result = await work();
      await this.#suspicion;
      if (!this.#hasEnded) return result;
    } catch (error) {
      await this.#suspicion;
      if (!this.#hasEnded) throw error;
    }
    return new Promise(ignore);
  }

  around<C extends PostgresClient>(client: C): C {
    return new Proxy(client, {
      apply: (target, self, parameters) => {
        this.#check();
        return this.#guarded(Reflect.apply(target as never, self, parameters));
      },
      get: (target, name) => {
        const value: unknown = Reflect.get(target, name);
        if (typeof value !== "function") return value;
        switch (name) {
          case "unsafe":
            return this.#checked(value, (query) => this.#guarded(query));
          case "file":
            return this.#checked(value, (query, [path]) => this.#guardedFile(target, query, path));
          case "notify":
          case "savepoint":
            return this.#checked(value, (result) => this.#unlessLost(result));
          default:
            return value;
        }
      },
    });
  }

  #checked(method: object, convert: (result: unknown, parameters: unknown[]) => unknown) {
    return (...parameters: unknown[]): unknown => {
      this.#check();
      const inside = parameters.map((parameter) => this.#inside(parameter));
      return convert(Reflect.apply(method as never, undefined, inside), parameters);
    };
  }

  /** A statement can be sent long after it was built, so it is checked when it is sent. */
  #guarded(query: unknown): unknown {
    if (!isQuery(query)) return query;
    const send = query.handler;
    query.handler = () => void this.#send(query, send);
    return query;
  }

  /** postgres.js reads the file before it sends the statement. */
  #guardedFile(client: PostgresClient, query: unknown, path: unknown): unknown {
    const other: unknown = client.unsafe("", [], { prepare: false });
    if (!isQuery(query) || !isQuery(other)) return query;
    const send = other.handler;
    query.handler = () => {
      readFile(String(path), "utf8", (error, text) => {
        if (error === null) {
          query.strings = [text];
          void this.#send(query, send);
        } else {
          query.reject(error);
        }
      });
    };
    return query;
  }

  async #send(query: Query, send: (query: Query) => unknown): Promise<void> {
    // Without a suspicion the statement is sent at once, so that the order stays.
    if (this.#suspicion !== undefined) await this.#suspicion;
    if (this.#hasEnded) {
      this.wasUsedLate = true;
      query.reject(hasEnded());
      return;
    }
    this.#open.add(query);
    observe(query, "resolve", (result) => {
      this.#open.delete(query);
      if (endsTransaction(result)) this.#leave();
    });
    observe(query, "reject", (error) => {
      this.#open.delete(query);
      this.#suspect(error);
    });
    send(query);
  }

  /** Until it is known whether the connection is lost, no statement is sent. */
  #suspect(error: unknown): void {
    if (this.#hasEnded || serverError(error)?.severity === "ERROR") return;
    const suspicion = turns(TURNS_UNTIL_CLOSED).then(() => {
      if (this.#suspicion === suspicion) this.#suspicion = undefined;
    });
    this.#suspicion = suspicion;
  }

  /** The connection is in the pool again, and `sql.begin` would send ROLLBACK on it. */
  #leave(): void {
    this.end();
    this.#failLeft(hasEndedTransaction());
  }

  /** The promise of a savepoint stays pending after the end, but its caller must continue. */
  #unlessLost(result: unknown): unknown {
    const settled = Promise.resolve(result).catch(async (error: unknown) => {
      this.#suspect(error);
      await this.#suspicion;
      throw error;
    });
    const outcome = Promise.race([settled, this.#ended]);
    // As for the statements of postgres.js, an error that is not awaited does not end the process.
    outcome.catch(ignore);
    return outcome;
  }

  /** Returns the callback of a savepoint, which gets a client too. */
  #inside(parameter: unknown): unknown {
    if (typeof parameter !== "function") return parameter;
    const work = parameter as Work;
    return (client: PostgresClient) =>
      this.unlessEnded(async () => allOf(work(this.around(client))));
  }

  #check(): void {
    if (!this.#hasEnded) return;
    this.wasUsedLate = true;
    throw hasEnded();
  }
}

/** Awaits the result of a callback, which can be an array of statements. */
export async function allOf<T>(result: T | PromiseLike<T>): Promise<Awaited<T>> {
  return (Array.isArray(result) ? Promise.all(result) : result) as Promise<Awaited<T>>;
}

const BEGINS: ReadonlySet<unknown> = new Set(["BEGIN", "START TRANSACTION"]);
const ENDS: ReadonlySet<unknown> = new Set(["ROLLBACK", "COMMIT", "PREPARE TRANSACTION"]);

/**
 * Returns whether the connection has no transaction after a statement. The command tags of
 * ROLLBACK TO SAVEPOINT and of AND CHAIN are ROLLBACK and COMMIT too.
 */
function endsTransaction(result: unknown): boolean {
  const results = (Array.isArray(result) && !("command" in result) ? result : [result]) as {
    readonly command?: unknown;
    readonly statement?: { readonly string?: unknown };
  }[];
  const commands = results.map((one) => one.command);
  const last = commands.reverse().find((command) => BEGINS.has(command) || ENDS.has(command));
  if (!ENDS.has(last)) return false;
  return !/\b(to|chain)\b/i.test(String(results[0]?.statement?.string));
}

function hasEnded(): IdemError {
  return new IdemError("the transaction has ended, or its connection is lost", {
    retryable: true,
  });
}

async function turns(count: number): Promise<void> {
  for (let turn = 0; turn < count; turn += 1) {
    await new Promise((resolve) => setImmediate(resolve));
  }
}

function ignore(): void {
  // Nothing waits for this.
}
