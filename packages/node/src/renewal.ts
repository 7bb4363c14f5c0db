/** Renews a lease in the background. */

import { IdemError, LeaseLostError } from "./errors.js";

export interface RenewalOptions {
  readonly leaseMs: number;
  /** A time of `performance.now` before the lease was requested. */
  readonly askedAtMs: number;
  /** Extends the lease in a transaction of its own. */
  readonly extend: () => Promise<void>;
}

/**
 * Renews a lease each time a third of its duration has passed, until it is stopped. Only the clock
 * of this process is used, which never assumes a later end of the lease than the server.
 */
export class Renewal {
  readonly #options: RenewalOptions;
  readonly #lost = new AbortController();
  #endsAtMs: number;
  /** The error of the last attempt to extend the lease, if it failed. */
  #failure: unknown;
  #timer: NodeJS.Timeout | undefined;
  /** The number of stops. A renewal that began before the last one has no effect. */
  #stops = 0;

  constructor(options: RenewalOptions) {
    this.#options = options;
    this.#endsAtMs = options.askedAtMs + options.leaseMs;
    this.#schedule();
  }

  /**
   * Aborts when the lease is lost or may be lost. The reason is a `LeaseLostError`, whose cause is
   * the last error of the renewal.
   */
  get signal(): AbortSignal {
    return this.#lost.signal;
  }

  /**
   * Throws a `LeaseLostError` if the lease is lost. Also aborts after the end of the lease, because
   * in a process that was paused a reply can be handled before the timer that aborts.
   */
  throwIfLost(): void {
    if (!this.signal.aborted && performance.now() >= this.#endsAtMs) {
      this.stop();
      this.#lost.abort(expired(this.#failure));
    }
    this.signal.throwIfAborted();
  }

  stop(): void {
    this.#stops += 1;
    clearTimeout(this.#timer);
  }

  /** Continues after a stop, unless the lease is lost. */
  resume(): void {
    this.stop();
    if (!this.signal.aborted) this.#schedule();
  }

  #schedule(): void {
    const dueAtMs = this.#endsAtMs - (this.#options.leaseMs * 2) / 3;
    const stops = this.#stops;
    const renew = () => void this.#renew(() => stops !== this.#stops);
    this.#timer = setTimeout(renew, Math.max(0, dueAtMs - performance.now()));
    // The work keeps the process alive, not its lease.
    this.#timer.unref();
  }

  async #renew(isStopped: () => boolean): Promise<void> {
    const error = await this.#extend(isStopped);
    if (isStopped()) return;
    if (error === undefined) this.#schedule();
    else this.#lost.abort(error);
  }

  /** Extends the lease, with retries until it ends. Returns the error if the lease is lost. */
  async #extend(isStopped: () => boolean): Promise<IdemError | undefined> {
    const pauseMs = Math.max(1, this.#options.leaseMs / 20);
    while (!isStopped()) {
      const askedAtMs = performance.now();
      const result = await this.beforeTheEnd(this.#options.extend());
      if (result === undefined) {
        this.#endsAtMs = askedAtMs + this.#options.leaseMs;
        this.#failure = undefined;
        return undefined;
      }
      if (result instanceof LeaseLostError) return result;
      this.#failure = result;
      // An attempt that fails at once is faster than the timer of the end.
      if (performance.now() >= this.#endsAtMs) return expired(result);
      await pause(pauseMs);
    }
    return undefined;
  }

  /** Returns the error of an attempt, or a `LeaseLostError` when the lease ends before it. */
  async beforeTheEnd(attempt: Promise<void>): Promise<unknown> {
    let timer: NodeJS.Timeout | undefined;
    const end = new Promise<LeaseLostError>((resolve) => {
      const expire = () => {
        resolve(expired(this.#failure));
      };
      timer = setTimeout(expire, Math.max(0, this.#endsAtMs - performance.now()));
      timer.unref();
    });
    const outcome = attempt.then(
      () => undefined,
      (error: unknown) => error ?? new Error("the attempt failed"),
    );
    try {
      return await Promise.race([outcome, end]);
    } finally {
      clearTimeout(timer);
    }
  }
}

function expired(cause: unknown): LeaseLostError {
  return new LeaseLostError("the lease ended before it was renewed", { retryable: true, cause });
}

/** Does not keep the process alive, as the timer of the next renewal. */
function pause(milliseconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, milliseconds).unref());
}
