/** A protected request and its handler, without a framework. */

import type { Client, Transactor } from "../transactions/pool.js";
import type { LimitOf, Rules } from "./options.js";
import type { CompleteResponse } from "./recorded.js";

/** Which request it is: the message id, and the fingerprint of its content. */
export interface Identity {
  readonly id: string;
  readonly destination: string;
  readonly fingerprint: Buffer;
}

/** What a middleware does with one request. `X` is what the handler gets. */
export interface Exchange<X> {
  /** Aborts when the client has disconnected. */
  readonly disconnected: AbortSignal;
  /**
   * Runs the handler, and returns its response when it is complete. The client does not get the
   * response yet. Called at most once. Fails with a Problem if the body exceeds the limit of its
   * status. Of a response that is not recorded only the status is needed.
   */
  run(context: X, limitOf: LimitOf): Promise<CompleteResponse>;
}

/** A request that is to be processed: what an attempt at it needs. */
export interface Task<C extends Client, X> {
  readonly rules: Rules<never>;
  readonly transactor: Transactor<C>;
  readonly identity: Identity;
  readonly exchange: Exchange<X>;
}

/**
 * The result of a request.
 *
 * - `handler`: the client gets the response of the handler.
 * - `other`: the client gets this response: a recorded one, or a problem.
 * - `disconnected`: there is no client, and nothing took effect.
 */
export type Result =
  | { readonly kind: "handler" }
  | { readonly kind: "other"; readonly response: CompleteResponse }
  | { readonly kind: "disconnected" };

/** The client has disconnected before the response was recorded. */
export class DisconnectedError extends Error {
  override name = "DisconnectedError";
}

/** Returns the result of a promise, or fails with `error` if the signal aborts before. */
export async function unlessAborted<T>(
  promise: Promise<T>,
  signal: AbortSignal,
  error: () => Error,
): Promise<T> {
  let abort: (() => void) | undefined;
  const aborted = new Promise<never>((_, reject) => {
    abort = () => {
      reject(error());
    };
    if (signal.aborted) abort();
    else signal.addEventListener("abort", abort, { once: true });
  });
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    if (abort !== undefined) signal.removeEventListener("abort", abort);
    // The loser of the race has no other listener.
    promise.catch(() => undefined);
    aborted.catch(() => undefined);
  }
}
