/** Makes external calls once, and records their results. */

import { retry } from "./backoff.js";
import { CallFailedError, describe, UnstorableResult } from "./call-errors.js";
import { IdemError, isOfEnvironment, LeaseLostError, NOT_HELD } from "./errors.js";
import { idem, type Idem } from "./idem.js";
import type { BegunCall, Step } from "./journal.js";
import { textOfJson, type Jsonify } from "./json.js";
import { checkOptions } from "./options.js";
import type { LeaseToken } from "./outcomes.js";
import type { Renewal } from "./renewal.js";
import type { Client, Transactor } from "./transactions/pool.js";

/** What a call gets. */
export interface CallContext {
  /** A UUID that is the same for every attempt and every process. */
  readonly idempotencyKey: string;
  /** The number of this attempt, beginning with 1. */
  readonly attempt: number;
  /** Aborts when the lease is lost. */
  readonly signal: AbortSignal;
}

/** An earlier attempt at a call whose result is not known. */
export interface UnknownCall extends CallContext {
  /** When the first attempt without a recorded result began. */
  readonly begunAt: Date | null;
}

/**
 * What to do if an earlier attempt began the call and its result is not known.
 *
 * - `repeat`: make the call again with the same key.
 * - `fail`: make no call, and fail with a `CallFailedError` whose failure is `unknown`.
 * - a function: query the external system. `{ found }` is recorded as the result, and `CallRefused`
 *   as a rejection. With null the call is made. After any other error of the function the result of
 *   the earlier attempt stays unknown. `CallNotDone` takes this attempt back.
 */
export type OnUnknown<T> = "repeat" | "fail" | ((call: UnknownCall) => Promise<Found<T> | null>);

export interface Found<T> {
  readonly found: T;
}

export interface OnceOptions<T> {
  readonly onUnknown: OnUnknown<T>;
}

/** The message whose calls are made. */
export interface CallOwner extends LeaseToken {
  readonly leaseMs: number;
}

/** The external calls of a leased message. */
export class ExternalCalls<C extends Client> {
  readonly #transactor: Transactor<C>;
  readonly #owner: CallOwner;
  readonly #renewal: Renewal;
  /** The names of the steps that this process executes now. */
  readonly #inProgress = new Set<string>();

  constructor(transactor: Transactor<C>, owner: CallOwner, renewal: Renewal) {
    this.#transactor = transactor;
    this.#owner = owner;
    this.#renewal = renewal;
  }

  /** See `once` of `Lease`. */
  async once<T>(
    name: string,
    request: unknown,
    call: (context: CallContext) => Promise<T>,
    options: OnceOptions<T>,
  ): Promise<Jsonify<T>> {
    throwIfGenerator(call);
    checkOptions("once", options, "onUnknown");
    this.#renewal.throwIfLost();
    if (this.#inProgress.has(name)) throw inProgress(name);
    this.#inProgress.add(name);
    try {
      return await this.#execute(name, request, call, options);
    } finally {
      this.#inProgress.delete(name);
    }
  }

  async #execute<T>(
    name: string,
    request: unknown,
    call: (context: CallContext) => Promise<T>,
    options: OnceOptions<T>,
  ): Promise<Jsonify<T>> {
    const { id, destination } = this.#owner;
    const step: Step = { id, destination, step: name };
    const begun = await this.#begin(step, request);
    switch (begun.state) {
      case "done":
        return begun.response as Jsonify<T>;
      case "failed":
        throw CallFailedError.refused(name, begun.error);
      case "unknown": {
        const found = await this.#find(step, begun, options.onUnknown);
        if (found !== null) return found.found;
        break;
      }
      case "new":
        break;
    }
    // A process that was paused since the step began makes no call.
    this.#renewal.throwIfLost();
    const response: T = await this.#result(step, () => call(this.#contextOf(begun)));
    return this.#finish(step, response);
  }

  /**
   * Begins the call. After a lost reply to COMMIT the transaction is repeated, and the step is
   * unknown because of the first try, which has made no call. So the step is still new. But if the
   * first try was rolled back, the step can be unknown because of another process.
   */
  async #begin(step: Step, request: unknown): Promise<BegunCall> {
    const { token } = this.#owner;
    let first: BegunCall | undefined;
    const last = await this.#write(async ({ journal }) => {
      const begun = await journal.beginCall(step, { request, token });
      first ??= begun;
      return begun;
    });
    return first !== undefined && isUnknownBecauseOf(first, last) ? first : last;
  }

  /** Finds out the result of an earlier attempt. Returns null if the call is to be made. */
  async #find<T>(
    step: Step,
    begun: BegunCall,
    onUnknown: OnUnknown<T>,
  ): Promise<Found<Jsonify<T>> | null> {
    if (onUnknown === "repeat") return null;
    if (onUnknown === "fail") {
      throw new CallFailedError(
        step.step,
        "unknown",
        `the result of step "${step.step}" of an earlier attempt is not known: check whether it ` +
          "had an effect",
      );
    }
    const found = await this.#result(step, async () => {
      const result = await onUnknown({ ...this.#contextOf(begun), begunAt: begun.begunAt });
      if (!isFound(result)) throw new TypeError("onUnknown returned neither { found } nor null");
      return result;
    });
    return found === null ? null : { found: await this.#finish(step, found.found) };
  }

  /** Returns the result of the call or of the query, or records its error. */
  async #result<T>(step: Step, ask: () => Promise<T>): Promise<T> {
    try {
      return await ask();
    } catch (error) {
      throw await this.#fail(step, error);
    }
  }

  /**
   * Returns the result as later attempts get it: through JSON. A result that cannot be stored is
   * recorded as the failure of the call, which has had its effect. An error of the environment
   * leaves the result unknown.
   */
  async #finish<T>(step: Step, response: T): Promise<Jsonify<T>> {
    try {
      const text = textOfJson(response === undefined ? null : response);
      const recorded = JSON.parse(text) as Jsonify<T>;
      await this.#write(({ journal }) => journal.finishCall(step, recorded));
      return recorded;
    } catch (error) {
      // Another process has recorded a result, or the database is not available.
      if (error instanceof IdemError && (isOfEnvironment(error) || error.sqlstate === NOT_HELD)) {
        throw error;
      }
      throw await this.#fail(step, new UnstorableResult(error));
    }
  }

  async #fail(step: Step, error: unknown): Promise<CallFailedError> {
    const failed = CallFailedError.of(step.step, error);
    if (failed.failure !== "uncertain") {
      await this.#recordFailure(step, error, failed.failure === "not_done");
    }
    return failed;
  }

  async #recordFailure(step: Step, cause: unknown, retryable: boolean): Promise<void> {
    const owner = this.#owner;
    try {
      await this.#write(async (on) => {
        // The holder of the next lease may be making the call, so only the holder records. But a
        // call whose result cannot be stored was made.
        if (!(cause instanceof UnstorableResult)) {
          await on.extend(owner, { leaseMs: owner.leaseMs });
        }
        await on.journal.failCall(step, describe(cause), { retryable });
      });
    } catch (error) {
      if (!(error instanceof LeaseLostError)) throw error;
      const { message, sqlstate, hint } = error;
      throw new LeaseLostError(message, { sqlstate, hint, cause });
    }
  }

  /** A write can be repeated after a lost reply, because it writes the same values again. */
  #write<T>(work: (on: Idem) => Promise<T>): Promise<T> {
    return retry(() => this.#transactor.run((client) => work(idem(client))));
  }

  #contextOf(begun: BegunCall): CallContext {
    const { signal } = this.#renewal;
    return { idempotencyKey: begun.idempotencyKey, attempt: begun.attempt, signal };
  }
}

/** Returns whether the step is unknown because the first try committed, and its reply was lost. */
function isUnknownBecauseOf(first: BegunCall, begun: BegunCall): boolean {
  return (
    first.state === "new" &&
    begun.state === "unknown" &&
    first.begunAt?.getTime() === begun.begunAt?.getTime()
  );
}

function inProgress(step: string): IdemError {
  return new IdemError(`step "${step}" is in progress under this lease`, {
    hint: "Wait for the first call of once, or use another name for the step.",
    retryable: false,
  });
}

/** A generator function returns at once, and its body is never executed. */
export function throwIfGenerator(call: unknown): void {
  if (!Object.prototype.toString.call(call).includes("Generator")) return;
  throw new TypeError("a call is a function that returns a promise, and no generator function");
}

function isFound(found: unknown): boolean {
  return found === null || (typeof found === "object" && "found" in found);
}
