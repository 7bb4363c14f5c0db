/** Leases that are renewed in the background. */

import { retry } from "./backoff.js";
import { ExternalCalls, type CallContext, type OnceOptions } from "./calls.js";
import { asyncDispose } from "./dispose.js";
import type { Effects } from "./effects.js";
import { CommitUnknownError, IdemError, leaseError, LeaseLostError } from "./errors.js";
import { runOn } from "./executors/index.js";
import { idem, type Idem } from "./idem.js";
import type { Jsonify } from "./json.js";
import type { Letter } from "./letter.js";
import type { MessageId } from "./message-id.js";
import type { Held, LeaseOutcome, Settlement } from "./outcomes.js";
import { Renewal } from "./renewal.js";
import { FORBID_COMMIT } from "./statements/commit.js";
import { completeAndAllowCommit, SHORT_LOCK_TIMEOUT } from "./statements/leases.js";
import type { ReleaseOptions } from "./statements/leases.js";
import { transactorOf } from "./transactions/index.js";
import type { Client, ClientOf, Pool, Transactor } from "./transactions/pool.js";

const DEFAULT_LEASE_MS = 30_000;

/** The message to lease. */
export interface LeaseRequest {
  readonly id: MessageId;
  readonly destination: string;
  /** The duration of the lease: 1 millisecond to 1 day. 30 seconds by default. */
  readonly leaseMs?: number | undefined;
}

/** The message is not leased by this process. There is nothing to dispose. */
export type NotLeased = Exclude<LeaseOutcome, { outcome: "acquired" | "exhausted" }> & Disposable;

interface Disposable {
  dispose(): Promise<void>;
  [asyncDispose](): Promise<void>;
}

/**
 * Leases a message, and renews the lease in the background each time a third of its duration has
 * passed.
 *
 * ```ts
 * await using held = await lease(pool, { id, destination: "shipping.book" });
 * if (held.outcome === "acquired") {
 *   const parcel = await held.once("book", order, (call) => book(order, call.idempotencyKey), {
 *     onUnknown: "repeat",
 *   });
 *   await held.complete({ topic: "shipping.booked", payload: parcel });
 * }
 * return held.settlement;
 * ```
 *
 * @param pool a `Pool` of node-postgres or the `sql` of postgres.js.
 */
export async function lease<P extends Pool>(
  pool: P,
  request: LeaseRequest,
): Promise<Lease<ClientOf<P> & Client> | NotLeased> {
  return leaseOn(transactorOf(pool) as Transactor<ClientOf<P> & Client>, request);
}

/** Leases a message in transactions of this kind. */
export async function leaseOn<C extends Client>(
  transactor: Transactor<C>,
  request: LeaseRequest,
): Promise<Lease<C> | NotLeased> {
  const leaseMs = request.leaseMs ?? DEFAULT_LEASE_MS;
  const askedAtMs = performance.now();
  const leased = await transactor.run((client) =>
    idem(client).acquire(request.id, request.destination, { leaseMs }),
  );
  if (leased.outcome === "acquired" || leased.outcome === "exhausted") {
    return new Lease(transactor, leased, { leaseMs, askedAtMs });
  }
  return { ...leased, dispose: nothing, [asyncDispose]: nothing };
}

/** A lease that this process holds, renewed until it is completed, released, buried or disposed. */
export class Lease<C extends Client> implements Held, Disposable {
  /** `exhausted` means that no attempt is left: call `bury`. */
  readonly outcome: "acquired" | "exhausted";
  readonly id: MessageId;
  readonly destination: string;
  readonly token: bigint;
  readonly attempt: number;
  readonly lastError: string | null;
  /** The duration of the lease after each renewal. */
  readonly leaseMs: number;
  readonly #transactor: Transactor<C>;
  readonly #renewal: Renewal;
  readonly #calls: ExternalCalls<C>;
  #isEnded = false;
  #isSettled = false;

  /** @internal */
  constructor(
    transactor: Transactor<C>,
    leased: Extract<LeaseOutcome, { outcome: "acquired" | "exhausted" }>,
    timing: { readonly leaseMs: number; readonly askedAtMs: number },
  ) {
    this.outcome = leased.outcome;
    this.id = leased.id;
    this.destination = leased.destination;
    this.token = leased.token;
    this.attempt = leased.attempt;
    this.lastError = leased.lastError;
    this.#transactor = transactor;
    const { leaseMs } = timing;
    this.leaseMs = leaseMs;
    this.#renewal = new Renewal({
      ...timing,
      extend: () => this.#run((on) => on.extend(this, { leaseMs })),
    });
    this.#calls = new ExternalCalls(transactor, this, this.#renewal);
  }

  /**
   * What to tell the broker now: `acknowledge` after `complete` and `bury`, `reject` if the message
   * is exhausted, otherwise `redeliver`.
   */
  get settlement(): Settlement {
    if (this.#isSettled) return "acknowledge";
    return this.outcome === "exhausted" ? "reject" : "redeliver";
  }

  /** Aborts when the lease is lost or may be lost: another process may work on the message. */
  get signal(): AbortSignal {
    return this.#renewal.signal;
  }

  /**
   * Makes an external call once. The result is recorded, and every later attempt returns the
   * recorded result, as JSON represents it, without a call.
   *
   * Fails before the call if the lease is lost. Fails with a `CallFailedError` if there is no
   * result. A call that throws `CallRefused`, or whose result cannot be stored (it is no JSON, or
   * larger than `idem.max_payload`), is never made again. After `CallNotDone` the next attempt
   * makes it as if for the first time. After any other error the next attempt decides with
   * `onUnknown` what to do. Fails with an `IdemError` while the same step is in progress under this
   * lease.
   *
   * @param step the name of the call, 1 to 255 bytes. It is unique in the message.
   * @param request the content of the call. It must be the same at every attempt.
   */
  once<T>(
    step: string,
    request: unknown,
    call: (context: CallContext) => Promise<T>,
    options: OnceOptions<T>,
  ): Promise<Jsonify<T>> {
    return this.#calls.once(step, request, call, options);
  }

  /**
   * Completes the message, and records its effects. With a function, its writes and the effects
   * that it returns commit together with the completion. Returns the message ids of the effects.
   * After an error the lease is still renewed.
   *
   * If the reply to a completion without a function was lost, the completion is sent again. With a
   * function this fails with a `CommitUnknownError`. The function cannot commit or roll back.
   */
  async complete(
    effects: Effects | ((client: C) => Promise<Effects | undefined>) = [],
  ): Promise<string[]> {
    if (typeof effects === "function") return this.#settle(() => this.#completeWith(effects));
    this.#renewal.stop();
    return this.#settle(() => this.#completeAgain(effects));
  }

  /**
   * Releases the message. Returns the milliseconds until its next attempt, or null. A long error is
   * cut.
   */
  release(options: ReleaseOptions = {}): Promise<number | null> {
    this.#renewal.stop();
    return this.#end(() => this.#run((on) => on.release(this, options)));
  }

  /** Stores the message as a dead letter. */
  bury(letter: Letter): Promise<void> {
    this.#renewal.stop();
    return this.#settle(() => this.#run((on) => on.bury(this, letter)));
  }

  /**
   * Stops the renewal. A message that is not completed, released or buried is released with an
   * error, so its attempt counts. If that fails or no connection is free until the lease ends, the
   * lease expires.
   */
  async dispose(): Promise<void> {
    this.#renewal.stop();
    if (this.#isEnded) return;
    this.#isEnded = true;
    const error = "the attempt ended without a completion";
    const released = this.#transactor.run(async (client) => {
      // A transaction of this program that has completed the message can still be open.
      await runOn(client)(SHORT_LOCK_TIMEOUT);
      await idem(client).release(this, { error });
    });
    // The caller may hold the only connection of the pool.
    const failed = await this.#renewal.beforeTheEnd(released);
    if (failed instanceof Error && !(failed instanceof IdemError)) throw failed;
  }

  [asyncDispose](): Promise<void> {
    return this.dispose();
  }

  #completeWith(work: (client: C) => Promise<Effects | undefined>): Promise<string[]> {
    const beginning = { first: FORBID_COMMIT, isolation: "read committed" } as const;
    let isWorkDone = false;
    const completed = this.#transactor.transact(beginning, async (client) => {
      const effects = (await work(client)) ?? [];
      isWorkDone = true;
      this.#renewal.stop();
      return { commit: true, last: completeAndAllowCommit(this, effects) };
    });
    return completed.catch((error: unknown) => {
      throw isWorkDone ? leaseError(error) : error;
    });
  }

  async #completeAgain(effects: Effects): Promise<string[]> {
    let isUnknown = false;
    return retry(() =>
      this.#run((on) => on.complete(this, effects)).catch(async (error: unknown) => {
        // The completion whose reply was lost has ended the lease.
        if (isUnknown && error instanceof LeaseLostError) return this.#completed(error);
        isUnknown ||= error instanceof CommitUnknownError;
        throw error;
      }),
    );
  }

  /** Returns the effects of the completed message. Throws the error if it is not completed. */
  #completed(error: LeaseLostError): Promise<string[]> {
    return this.#run(async (on) => {
      if (!(await on.isClaimed(this.id, this.destination))) throw error;
      const effects = await on.effects(this.id, this.destination);
      return effects.map((effect) => effect.messageId);
    });
  }

  /** Ends the lease, and with it what the broker has to do. */
  async #settle<T>(work: () => Promise<T>): Promise<T> {
    const result = await this.#end(work);
    this.#isSettled = true;
    return result;
  }

  /** Ends the lease. If that fails, the renewal continues. */
  async #end<T>(work: () => Promise<T>): Promise<T> {
    try {
      const result = await work();
      this.#isEnded = true;
      return result;
    } catch (error) {
      if (!this.#isEnded) this.#renewal.resume();
      throw error;
    }
  }

  #run<T>(work: (on: Idem) => Promise<T>): Promise<T> {
    return this.#transactor.run((client) => work(idem(client)));
  }
}

function nothing(): Promise<void> {
  return Promise.resolve();
}
