/** Makes external calls once, and records their results. */

import { again } from "./backoff.js";
import { CallFailedError, CallNotDone, CallRefused, describe } from "./call-errors.js";
import type { CallFailure } from "./call-errors.js";
import { LeaseLostError, storable } from "./errors.js";
import { idem, type Idem } from "./idem.js";
import { textOfJson } from "./json.js";
import type { MessageId } from "./message-id.js";
import type { BegunCall, Step } from "./statements/journal.js";
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
 * - a function: query the external system. `{ found }` is recorded as the result. With null the
 *   call is made.
 */
export type OnUnknown<T> = "repeat" | "fail" | ((call: UnknownCall) => Promise<Found<T> | null>);

export interface Found<T> {
  readonly found: T;
}

export interface OnceOptions<T> {
  readonly onUnknown: OnUnknown<T>;
}

/** The message whose calls are made. */
export interface CallOwner {
  readonly id: MessageId;
  readonly destination: string;
  readonly token: bigint;
  readonly leaseMs: number;
  readonly signal: AbortSignal;
}

/** The external calls of a leased message. */
export class ExternalCalls<C extends Client> {
  readonly #transactor: Transactor<C>;
  readonly #owner: CallOwner;

  constructor(transactor: Transactor<C>, owner: CallOwner) {
    this.#transactor = transactor;
    this.#owner = owner;
  }

  /** See `once` of `Lease`. */
  async once<T>(
    name: string,
    request: unknown,
    call: (context: CallContext) => Promise<T>,
    options: OnceOptions<T>,
  ): Promise<T> {
    const { id, destination, signal } = this.#owner;
    const step: Step = { id, destination, step: name };
    signal.throwIfAborted();
    const begun = await this.#begin(step, request);
    switch (begun.state) {
      case "done":
        return begun.response as T;
      case "failed":
        throw new CallFailedError(name, "refused", refusal(name, begun.error));
      case "unknown": {
        const found = await this.#find(step, begun, options.onUnknown);
        if (found !== null) return found.found;
        break;
      }
      case "new":
        break;
    }
    // A process that was paused since the step began makes no call.
    signal.throwIfAborted();
    return this.#made(step, () => call(contextOf(begun, signal)));
  }

  /** Begins the call. After a lost reply it is unknown because of this process itself. */
  async #begin(step: Step, request: unknown): Promise<BegunCall> {
    const { token } = this.#owner;
    let first: BegunCall | undefined;
    const last = await this.#write(async ({ journal }) => {
      const begun = await journal.beginCall(step, { request, token });
      first ??= begun;
      return begun;
    });
    return first?.state === "new" ? first : last;
  }

  /** Finds out the result of an earlier attempt. Returns null if the call is to be made. */
  async #find<T>(
    step: Step,
    begun: BegunCall,
    onUnknown: OnUnknown<T>,
  ): Promise<Found<T> | null> {
    if (onUnknown === "repeat") return null;
    if (onUnknown === "fail") {
      throw new CallFailedError(
        step.step,
        "unknown",
        `the result of step "${step.step}" of an earlier attempt is not known: check whether it ` +
          "had an effect",
      );
    }
    const context = { ...contextOf(begun, this.#owner.signal), begunAt: begun.begunAt };
    const found = await this.#reported(step, () => onUnknown(context));
    return found === null ? null : { found: await this.#finish(step, found.found) };
  }

  /** Makes the call and records its result. */
  async #made<T>(step: Step, call: () => Promise<T>): Promise<T> {
    return this.#finish(step, await this.#reported(step, call));
  }

  /** Executes a request, and records its error. */
  async #reported<T>(step: Step, request: () => Promise<T>): Promise<T> {
    try {
      return await request();
    } catch (error) {
      throw await this.#fail(step, error);
    }
  }

  /** Returns the result as later attempts get it: through JSON. */
  async #finish<T>(step: Step, response: T): Promise<T> {
    const text = textOfJson(response === undefined ? null : response);
    const recorded = JSON.parse(text) as T;
    await this.#write(({ journal }) => journal.finishCall(step, recorded));
    return recorded;
  }

  async #fail(step: Step, error: unknown): Promise<CallFailedError> {
    const failure = failureOf(error);
    const why = storable(describe(error));
    if (failure !== "uncertain") await this.#recordFailure(step, why, failure, error);
    return new CallFailedError(step.step, failure, MESSAGES[failure](step.step, why), error);
  }

  async #recordFailure(
    step: Step,
    why: string,
    failure: "refused" | "not_done",
    cause: unknown,
  ): Promise<void> {
    const owner = this.#owner;
    try {
      await this.#write(async (on) => {
        // The holder of the next lease may be making the call, so only the holder records.
        await on.extend(owner, { leaseMs: owner.leaseMs });
        await on.journal.failCall(step, why, { retryable: failure === "not_done" });
      });
    } catch (error) {
      if (!(error instanceof LeaseLostError)) throw error;
      const { message, sqlstate, hint } = error;
      throw new LeaseLostError(message, { sqlstate, hint, cause });
    }
  }

  /** A write can be repeated after a lost reply, because it writes the same values again. */
  #write<T>(work: (on: Idem) => Promise<T>): Promise<T> {
    return again(() => this.#transactor.run((client) => work(idem(client))));
  }
}

function contextOf(begun: BegunCall, signal: AbortSignal): CallContext {
  return { idempotencyKey: begun.idempotencyKey, attempt: begun.attempt, signal };
}

function failureOf(error: unknown): Exclude<CallFailure, "unknown"> {
  if (error instanceof CallRefused) return "refused";
  return error instanceof CallNotDone ? "not_done" : "uncertain";
}

const MESSAGES = {
  refused: refusal,
  not_done: (step: string, why: string) => `step "${step}" failed without effect: ${why}`,
  uncertain: (step: string, why: string) => `the result of step "${step}" is not known: ${why}`,
};

function refusal(step: string, why: string): string {
  return `the external system rejected step "${step}": ${why}`;
}
