/** Waits for leased requests at a shutdown. */

/** The leased requests of a middleware that are being processed. */
export class RunningRequests {
  readonly #running = new Set<Promise<unknown>>();

  /** The number of requests that are being processed. */
  get count(): number {
    return this.#running.size;
  }

  /**
   * Waits until all requests have ended and are recorded, at most for `graceMs` milliseconds.
   * Returns the number of requests that have not ended. Call it when the server accepts no more
   * requests.
   */
  async ended(graceMs: number): Promise<number> {
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise((resolve) => (timer = setTimeout(resolve, graceMs)));
    await Promise.race([Promise.allSettled(this.#running), late]);
    clearTimeout(timer);
    return this.count;
  }

  /** @internal */
  async add<T>(request: Promise<T>): Promise<T> {
    this.#running.add(request);
    try {
      return await request;
    } finally {
      this.#running.delete(request);
    }
  }
}
