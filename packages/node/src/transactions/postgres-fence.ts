/**
 * Keeps the statements of a transaction of postgres.js inside of it.
 *
 * When a connection is lost, `sql.begin` fails at once, and its callback continues. postgres.js
 * 3.4.9 sends the next statement of the callback on the connection that replaces the lost one,
 * where it is committed alone or becomes a part of another transaction. Before there is another
 * connection, the statement ends the process with a TypeError.
 */

import { IdemError } from "../errors.js";

/** What this package needs of the `sql` of a transaction. */
export interface PostgresClient {
  unsafe(
    text: string,
    values: unknown[],
    options: { prepare: boolean },
  ): PromiseLike<unknown[]>;
}

type Then = (
  onResult?: ((value: unknown) => unknown) | null,
  onError?: ((error: unknown) => unknown) | null,
) => Promise<unknown>;

/** An error of postgres.js such as CONNECTION_CLOSED, or of Node.js such as EPIPE. */
function isLoss(error: unknown): boolean {
  if (!(error instanceof Error) || !("code" in error)) return false;
  return /^(CONNECTION_[A-Z]+|E[A-Z]+)$/.test(String(error.code));
}

type Work = (client: PostgresClient) => Promise<unknown>;

/** Sends no statement after the transaction has ended or its connection is lost. */
export class Fence {
  #hasEnded = false;

  end(): void {
    this.#hasEnded = true;
  }

  /**
   * Executes `work`. After the end the returned promise stays pending, because postgres.js would
   * send ROLLBACK or COMMIT.
   */
  async unlessEnded<T>(work: () => Promise<T>): Promise<T> {
    try {
      const result = await work();
      if (!this.#hasEnded) return result;
    } catch (error) {
      // `sql.begin` fails after the statements that the lost connection has ended.
      await new Promise((resolve) => setImmediate(resolve));
      if (!this.#hasEnded) throw error;
    }
    return new Promise(() => undefined);
  }

  /** Returns the client for the work. Its methods that send statements fail after the end. */
  around<C extends PostgresClient>(client: C): C {
    return new Proxy(client, {
      apply: (target, self, parameters) => {
        this.#check();
        return this.#watched(Reflect.apply(target as never, self, parameters));
      },
      get: (target, name) => {
        const value: unknown = Reflect.get(target, name);
        if (typeof value !== "function") return value;
        if (name === "savepoint") return this.#checked(value, (work) => this.#inside(work));
        return name === "unsafe" || name === "file" ? this.#checked(value) : value;
      },
    });
  }

  #checked(method: object, convert: (parameter: unknown) => unknown = (parameter) => parameter) {
    return (...parameters: unknown[]): unknown => {
      this.#check();
      return this.#watched(Reflect.apply(method as never, undefined, parameters.map(convert)));
    };
  }

  /** Ends the transaction before the work gets the error of a statement on a lost connection. */
  #watched(result: unknown): unknown {
    if (!(result instanceof Promise)) return result;
    // postgres.js sends a statement at the first call of `then`, and a part of a statement never.
    const then = result.then.bind(result) as Then;
    const watched: Then = (onResult, onError) =>
      then(onResult, (error) => {
        if (isLoss(error)) this.end();
        if (onError) return onError(error);
        throw error;
      });
    return Object.assign(result, { then: watched });
  }

  /** Returns the callback of a savepoint, which gets a client too. */
  #inside(work: unknown): unknown {
    if (typeof work !== "function") return work;
    return (client: PostgresClient) =>
      this.unlessEnded(() => Promise.resolve((work as Work)(this.around(client))));
  }

  #check(): void {
    if (!this.#hasEnded) return;
    throw new IdemError("the transaction has ended, or its connection is lost", {
      retryable: true,
    });
  }
}
