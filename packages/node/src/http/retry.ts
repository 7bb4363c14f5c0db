/** Repeats steps of a request that are safe to repeat. */

import { retry } from "../backoff.js";

/** No attempt begins later: a pool that has waited for a connection is not asked again. */
const RETRY_FOR_MS = 5000;

/** An error after which the step is not repeated. */
class Final extends Error {
  override readonly cause: unknown;

  constructor(cause: unknown) {
    super();
    this.cause = cause;
  }
}

/** Executes a step, and again after a lost connection or a conflict while `mayRepeat`. */
export async function retried<T>(
  step: () => Promise<T>,
  mayRepeat: () => boolean = () => true,
): Promise<T> {
  const endsAtMs = performance.now() + RETRY_FOR_MS;
  try {
    return await retry(() =>
      step().catch((error: unknown) => {
        throw mayRepeat() && performance.now() < endsAtMs ? error : new Final(error);
      }),
    );
  } catch (error) {
    throw error instanceof Final ? error.cause : error;
  }
}
