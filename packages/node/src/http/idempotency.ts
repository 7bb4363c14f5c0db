/** The decision about a request, without a framework. */

import { transactorOf } from "../transactions/index.js";
import type { Client, ClientOf, Pool, Transactor } from "../transactions/pool.js";
import type { Exchange, Identity, Result } from "./exchange.js";
import { fingerprintOf } from "./fingerprint.js";
import { TransactionAttempt } from "./in-transaction.js";
import { LeaseAttempt, type RequestLease } from "./leased.js";
import { Rules, type Mode, type Options } from "./options.js";
import { Problem } from "./problem.js";
import type { CompleteResponse } from "./recorded.js";
import type { RequestTransaction } from "./request-transaction.js";
import { RunningRequests } from "./running.js";

/** What the handler of a protected request gets. */
export type ContextOf<P extends Pool, M extends Mode> = M extends "lease"
  ? RequestLease
  : RequestTransaction<ClientOf<P>>;

/** How handlers get the transactions or leases of their requests. */
export interface Protected<X> {
  /** Returns the transaction or lease of a request. Throws an error if it is not protected. */
  of(request: object): X;
  /** Returns the transaction or lease of a request, or undefined if it is not protected. */
  find(request: object): X | undefined;
  /** The leased requests that are being processed. */
  readonly running: RunningRequests;
}

/** The head of a request. */
export interface Head {
  readonly method: string;
  /** The path and the query as the client has sent them. */
  readonly target: string;
}

/** Processes the requests of a middleware. `R` is the request of the framework. */
export class Idempotency<R, X> implements Protected<X> {
  readonly rules: Rules<R>;
  readonly running: RunningRequests;
  readonly #contexts = new WeakMap<object, X>();
  readonly #attempt: (identity: Identity, exchange: Exchange<X>) => Promise<Result>;

  constructor(
    rules: Rules<R>,
    attempt: (identity: Identity, exchange: Exchange<X>) => Promise<Result>,
    running = new RunningRequests(),
  ) {
    this.running = running;
    this.rules = rules;
    this.#attempt = attempt;
  }

  of(request: object): X {
    const context = this.find(request);
    if (context !== undefined) return context;
    throw new Error("the request is not protected by this middleware");
  }

  find(request: object): X | undefined {
    return this.#contexts.get(request);
  }

  /** Lets `of` return what the handler of this request gets. */
  set(request: object, context: X): void {
    this.#contexts.set(request, context);
  }

  /** Adds to a middleware what its handlers call. */
  protecting<M extends object>(middleware: M): M & Protected<X> {
    return Object.assign(middleware, {
      of: (request: object) => this.of(request),
      find: (request: object) => this.find(request),
      running: this.running,
    });
  }

  /** Processes a protected request. An error that is no Problem fails the request. */
  async result(
    id: string,
    { method, target }: Head,
    body: Uint8Array,
    exchange: Exchange<X>,
  ): Promise<Result> {
    const fingerprint = fingerprintOf(method, target, body);
    const identity = { id, destination: this.rules.destination, fingerprint };
    try {
      return await this.#attempt(identity, exchange);
    } catch (error) {
      const isProblem = error instanceof Problem;
      const problem = isProblem ? error : new Problem("failed", undefined, error);
      return { kind: "other", response: this.responseOf(problem) };
    }
  }

  /** Returns the response of a Problem. Throws any other error. */
  responseOf(error: unknown): CompleteResponse {
    if (!(error instanceof Problem)) throw error;
    if (error.cause !== undefined) this.rules.onError(error.cause);
    return {
      status: error.status,
      headers: error.headers(),
      body: error.body(),
    };
  }
}

/** Checks the options. `pool` is a `Pool` of node-postgres or the `sql` of postgres.js. */
export function idempotencyOf<P extends Pool, R, M extends Mode>(
  pool: P,
  options: Options<R, M>,
): Idempotency<R, ContextOf<P, M>> {
  const rules = new Rules<R>(options);
  const transactor = transactorOf(pool) as Transactor<ClientOf<P> & Client>;
  const running = new RunningRequests();
  const isLeased = options.mode === "lease";
  // The mode decides what the handler gets.
  const attempt = (identity: Identity, exchange: Exchange<never>) => {
    const task = { rules, transactor, identity, exchange };
    if (!isLeased) return new TransactionAttempt(task).result();
    return running.add(new LeaseAttempt(task).result());
  };
  return new Idempotency<R, ContextOf<P, M>>(rules, attempt, running);
}
