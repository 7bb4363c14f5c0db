/** The transaction of a protected request, as its handler sees it. */

/** The transaction that claims the request and records its response. */
export class RequestTransaction<C> {
  /** Aborts when the client has disconnected. The transaction is rolled back then. */
  readonly signal: AbortSignal;
  /**
   * The connection of the transaction: a `PoolClient` of node-postgres, or the `sql` of a
   * transaction of postgres.js. Its statements fail after the response.
   */
  readonly client: C;
  #keepsWrites = false;

  /** @internal */
  constructor(client: C, signal: AbortSignal) {
    this.client = client;
    this.signal = signal;
  }

  /** Commits the writes of the handler also with a status of 4xx. */
  keepWrites(): void {
    this.#keepsWrites = true;
  }

  /** @internal */
  get keepsWrites(): boolean {
    return this.#keepsWrites;
  }
}
