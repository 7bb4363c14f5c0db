/** Repeats short transactions after failures of the environment. */

import { IdemError } from "./errors.js";

const ATTEMPTS = 6;
const FIRST_PAUSE_MS = 50;

/** Repeats `work` while it fails with a retryable error, at most six times. */
export async function retry<T>(work: (attempt: number) => Promise<T>): Promise<T> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await work(attempt);
    } catch (error) {
      if (attempt === ATTEMPTS || !(error instanceof IdemError) || !error.retryable) throw error;
    }
    await sleep(pauseMs(attempt));
  }
}

/** Returns the pause after a failed attempt: it doubles with each one, and half of it is random. */
export function pauseMs(attempt: number): number {
  return FIRST_PAUSE_MS * 2 ** (attempt - 1) * (0.5 + Math.random() / 2);
}

export function sleep(milliseconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}
