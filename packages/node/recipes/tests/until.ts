/** Waits for states. */

import { setTimeout as sleep } from "node:timers/promises";

const DEADLINE_MS = 60_000;

/** Waits until the condition is true. Fails after the deadline. */
export async function until(what: string, isReached: () => Promise<boolean>): Promise<void> {
  const endsAt = performance.now() + DEADLINE_MS;
  while (!(await isReached())) {
    if (performance.now() > endsAt) throw new Error(`not reached: ${what}`);
    await sleep(20);
  }
}
