/** What the handler of a service and its test share. */

import assert from "node:assert/strict";

export class State {
  /** The number of requests whose heads have arrived. */
  received = 0;
  runs = 0;
  running = 0;
  holding = 0;
  charges = 0;
  /** The errors that the middleware has reported. */
  readonly errors: unknown[] = [];
  /** The clients of the handlers. */
  readonly clients: unknown[] = [];
  /** The reasons of signals that have aborted. */
  aborted = 0;
  #permits = 0;
  readonly #waiting: (() => void)[] = [];

  /** Waits for a release. */
  async hold(): Promise<void> {
    this.holding += 1;
    if (this.#permits > 0) this.#permits -= 1;
    else await new Promise<void>((resolve) => this.#waiting.push(resolve));
    this.holding -= 1;
  }

  /** Releases one handler that waits, or the next one that will. */
  release(): void {
    const next = this.#waiting.shift();
    if (next === undefined) this.#permits += 1;
    else next();
  }

  releaseAll(): void {
    for (const next of this.#waiting.splice(0)) next();
  }

  untilReceived(count: number): Promise<void> {
    return until(() => this.received === count);
  }

  untilHolding(count: number): Promise<void> {
    return until(() => this.holding === count);
  }

  untilNoneRuns(): Promise<void> {
    return until(() => this.running === 0);
  }
}

/** Waits until a condition is true. Fails after 20 seconds. */
export async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
  const endsAt = performance.now() + 20_000;
  while (!(await condition())) {
    assert.ok(performance.now() < endsAt, `is not true: ${String(condition)}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}
