/** Repeats short transactions after failures of the environment. */

import { IdemError } from "./errors.js";

const ATTEMPTS = 6;
const FIRST_PAUSE_MS = 50;

/** Repeats `work` while it fails with a retryable error, at most six times. */
export function retry<T>(
  work: () => Promise<T>,
  mayRepeat: () => boolean = () => true,
): Promise<T> {
  const isRetryable = (error: unknown) => error instanceof IdemError && error.retryable;
  return repeat(work, ATTEMPTS, (error) => isRetryable(error) && mayRepeat());
}

/** Repeats `work` while it fails with an error that `mayRepeat` accepts. */
export async function repeat<T>(
  work: () => Promise<T>,
  attempts: number,
  mayRepeat: (error: unknown) => boolean,
): Promise<T> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await work();
    } catch (error) {
      if (attempt >= attempts || !mayRepeat(error)) throw error;
    }
    // The pause doubles with each attempt, and half of it is random.
    const pauseMs = FIRST_PAUSE_MS * 2 ** (attempt - 1) * (0.5 + Math.random() / 2);
    await new Promise((resolve) => setTimeout(resolve, pauseMs));
  }
}
