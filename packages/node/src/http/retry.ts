/** Repeats steps of a request that are safe to repeat. */

import { retry } from "../backoff.js";

/** No attempt begins later: a pool that has waited for a connection is not asked again. */
const RETRY_FOR_MS = 5000;

/** Executes a step, and again after a lost connection or a conflict while `mayRepeat`. */
export function retried<T>(
  step: () => Promise<T>,
  mayRepeat: () => boolean = () => true,
): Promise<T> {
  const endsAtMs = performance.now() + RETRY_FOR_MS;
  return retry(step, () => mayRepeat() && performance.now() < endsAtMs);
}
