/** The errors of external calls: what a call throws, and what `once` throws. */

import { storable } from "./errors.js";

/** A call throws this error if the external system rejected it permanently. */
export class CallRefused extends Error {
  override name = "CallRefused";
}

/** A call throws this error if it certainly had no effect, for example as nothing was sent. */
export class CallNotDone extends Error {
  override name = "CallNotDone";
}

/**
 * Why there is no result of a call.
 *
 * - `refused`: the call is never made again: the external system rejected it, or its result cannot
 *   be stored.
 * - `not_done`: the call failed and certainly had no effect.
 * - `uncertain`: the call failed, and it is not known whether it had an effect.
 * - `unknown`: an earlier attempt began the call, its result is not known, and `onUnknown` is
 *   `fail`.
 */
export type CallFailure = "refused" | "not_done" | "uncertain" | "unknown";

/** A call was made, and its result cannot be stored. */
export class UnstorableResult extends Error {
  constructor(cause: unknown) {
    super("the call was made, and its result cannot be stored", { cause });
  }
}

/** The error of `once`. `cause` is the error of the call. */
export class CallFailedError extends Error {
  override name = "CallFailedError";
  readonly failure: CallFailure;
  readonly step: string;

  constructor(step: string, failure: CallFailure, message: string, cause?: unknown) {
    super(message, { cause });
    this.step = step;
    this.failure = failure;
  }

  /**
   * Returns the error of `once` after this error of a call or of a query.
   *
   * @internal
   */
  static of(step: string, error: unknown): CallFailedError {
    const why = describe(error);
    if (error instanceof CallRefused || error instanceof UnstorableResult) {
      return CallFailedError.refused(step, why, error);
    }
    if (error instanceof CallNotDone) {
      const text = `step "${step}" failed without effect: ${why}`;
      return new CallFailedError(step, "not_done", text, error);
    }
    const text = `the result of step "${step}" is not known: ${why}`;
    return new CallFailedError(step, "uncertain", text, error);
  }

  /**
   * Returns the error of a call that is never made again.
   *
   * @internal
   */
  static refused(step: string, why: string, cause?: unknown): CallFailedError {
    const text = `step "${step}" is never made again: ${why}`;
    return new CallFailedError(step, "refused", text, cause);
  }

  /** Whether every later attempt would fail with the same error. */
  get terminal(): boolean {
    return this.failure === "refused" || this.failure === "unknown";
  }

  /** What to tell the broker about the message of the call. */
  get settlement(): "reject" | "redeliver" {
    return this.terminal ? "reject" : "redeliver";
  }
}

/**
 * Returns the message of an error with those of its causes, as PostgreSQL can store it. An
 * IdemError has that of its cause.
 */
export function describe(error: unknown): string {
  const messages: string[] = [];
  let current = error;
  while (current instanceof Error && messages.length < 8) {
    if (messages.at(-1) !== current.message) messages.push(current.message);
    current = current.cause;
  }
  return storable(messages.length === 0 ? String(error) : messages.join(": "));
}
