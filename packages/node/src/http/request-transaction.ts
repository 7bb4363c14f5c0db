/** The transaction of a protected request, as its handler sees it. */

/** The transaction that claims the request and records its response. */
export class RequestTransaction<C> {
  /** Aborts when the client has disconnected. The transaction is rolled back then. */
  readonly signal: AbortSignal;
  readonly #client: C;
  #hasEnded = false;
  #wasUsedLate = false;
  #keepsWrites = false;

  /** @internal */
  constructor(client: C, signal: AbortSignal) {
    this.#client = client;
    this.signal = signal;
  }

  /**
   * The connection of the transaction: a `PoolClient` of node-postgres, or the `sql` of a
   * transaction of postgres.js. Fails after the response.
   */
  get client(): C {
    if (!this.#hasEnded) return this.#client;
    this.#wasUsedLate = true;
    throw new Error("the transaction of this request has ended: send the response last");
  }

  /** Commits the writes of the handler also with a status of 4xx. */
  keepWrites(): void {
    this.#keepsWrites = true;
  }

  /** @internal */
  get keepsWrites(): boolean {
    return this.#keepsWrites;
  }

  /** @internal */
  get wasUsedLate(): boolean {
    return this.#wasUsedLate;
  }

  /** @internal */
  end(): void {
    this.#hasEnded = true;
  }
}
