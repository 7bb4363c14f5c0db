/** Repeats short transactions after failures of the environment. */

import { IdemError } from "./errors.js";

const RETRIES = 5;
const FIRST_PAUSE_MS = 50;
const MAX_PAUSE_MS = 1000;

/** Repeats `work` while it fails with a retryable error, at most five times. */
export function retry<T>(
  work: () => Promise<T>,
  mayRepeat: () => boolean = () => true,
): Promise<T> {
  const isRetryable = (error: unknown) => error instanceof IdemError && error.retryable;
  return repeat(work, RETRIES, (error) => isRetryable(error) && mayRepeat());
}

/** Repeats `work` while it fails with an error that `mayRepeat` accepts. */
export async function repeat<T>(
  work: () => Promise<T>,
  retries: number,
  mayRepeat: (error: unknown) => boolean,
): Promise<T> {
  if (!Number.isInteger(retries) || retries < 0) {
    throw new RangeError(`retries is an integer of at least 0, not ${String(retries)}`);
  }
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await work();
    } catch (error) {
      if (attempt > retries || !mayRepeat(error)) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, pauseMsAfter(attempt)));
  }
}

/** The pause doubles with each attempt up to a second, and half of it is random. */
export function pauseMsAfter(attempt: number): number {
  const longestMs = Math.min(MAX_PAUSE_MS, FIRST_PAUSE_MS * 2 ** (attempt - 1));
  return longestMs * (0.5 + Math.random() / 2);
}
