/**
 * Keeps the statements of a transaction of node-postgres inside of it.
 *
 * A handler can continue after its end: if one branch of a `Promise.all` fails, the others go on.
 * Their connection is in the pool again, where a statement is committed alone or becomes a part of
 * the transaction of another message.
 */

import { serverError } from "../driver-error.js";
import { IdemError } from "../errors.js";
import type { Row } from "../statements/statement.js";
import type { Fence } from "./pool.js";

/** What this package needs of a `PoolClient`. */
export interface PgClient {
  query(text: string): Promise<PgResult | PgResult[]>;
  query(batch: { submit(connection: never): unknown }): unknown;
  /** Whether queries are sent before earlier ones have their results. */
  readonly pipeline?: boolean;
  release(error?: Error | boolean): void;
  escapeLiteral(text: string): string;
  on(event: "error", listener: (error: Error) => void): unknown;
  off(event: "error", listener: (error: Error) => void): unknown;
}

interface PgResult {
  readonly rows: Row[];
}

/** Methods that take the connection away from its transaction. */
const OWNED: ReadonlySet<string | symbol> = new Set(["release", "end"]);

/** The error of each statement after the one that failed. */
export const FAILED = "25P02";

type Method = (...parameters: unknown[]) => unknown;

/** Sends no statement after the transaction has ended. */
export class PgFence<C extends PgClient> implements Fence<C> {
  wasUsedLate = false;
  /** The error after which the transaction failed, if it failed. */
  failure: unknown;
  #hasEnded = false;

  close(): void {
    this.#hasEnded = true;
  }

  around(client: C): C {
    return new Proxy(client, {
      get: (target, name) => {
        const value: unknown = Reflect.get(target, name);
        if (typeof value !== "function") return value;
        if (OWNED.has(name)) return ownedMethod(String(name));
        const method = value.bind(target) as Method;
        return name === "query" ? this.#checked(method) : method;
      },
    });
  }

  /** Keeps the error, because the work can ignore it. */
  #observed(result: unknown): unknown {
    if (result instanceof Promise) {
      result.catch((error: unknown) => {
        if (serverError(error)?.sqlstate !== FAILED) this.failure = error;
      });
    }
    return result;
  }

  #checked(query: Method): Method {
    return (...parameters) => {
      if (!this.#hasEnded) return this.#observed(query(...parameters));
      this.wasUsedLate = true;
      const error = new IdemError("the transaction has ended", { retryable: false });
      if (returnsPromise(parameters)) return Promise.reject(error);
      throw error;
    };
  }
}

function ownedMethod(name: string): Method {
  return () => {
    throw new IdemError(`${name}() of the client of a transaction is not supported`, {
      hint: "The client is released when the transaction has ended.",
      retryable: false,
    });
  };
}

/** With a callback, and for a cursor or a stream, `query` returns no promise. */
function returnsPromise(parameters: readonly unknown[]): boolean {
  const [first] = parameters;
  if (typeof first === "object" && first !== null && ("submit" in first || "callback" in first)) {
    return false;
  }
  return !parameters.some((parameter) => typeof parameter === "function");
}
