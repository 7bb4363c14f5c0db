import type { RelayMessage } from "./relay-message.js";
import type { Run } from "./run.js";
import type { LeaseOptions } from "./statements/leases.js";
import * as statements from "./statements/relays.js";
import type { HandOverOptions, RelayNextOptions, RelayPartition } from "./statements/relays.js";

/**
 * Reads a partition of the outbox. Lease a batch and commit, publish the batch, then acknowledge it
 * in another transaction.
 */
export class Relay {
  readonly #run: Run;
  readonly #from: RelayPartition;

  /** @internal */
  constructor(run: Run, from: RelayPartition) {
    this.#run = run;
    this.#from = from;
  }

  /** Leases the next effects, and returns them in order. */
  async next(options: RelayNextOptions = {}): Promise<RelayMessage[]> {
    return this.#run(statements.relayNext(this.#from, options));
  }

  /** Acknowledges the batch with this token. */
  async ack(token: bigint): Promise<void> {
    await this.#run(statements.relayAck(this.#from, token));
  }

  /** Parks one effect of the batch, so that the other effects are delivered. */
  async park(token: bigint, messageId: string, error: string): Promise<void> {
    await this.#run(statements.relayPark(this.#from, token, messageId, error));
  }

  /** Extends the lease of the batch. Returns the new token of the same batch. */
  async extend(token: bigint, options: LeaseOptions = {}): Promise<bigint> {
    return this.#run(statements.relayExtend(this.#from, token, options));
  }

  /** Waits until there may be effects. Returns false after `timeoutMs` (1,000). */
  async wait(timeoutMs?: number): Promise<boolean> {
    return this.#run(statements.relayWait(timeoutMs));
  }

  /** Returns the number of partitions of the relay. */
  async partitions(): Promise<number> {
    return this.#run(statements.relayPartitions(this.#from.relay));
  }

  /** Delivers a parked effect next. Returns false if no effect with this id is parked. */
  async unpark(messageId: string): Promise<boolean> {
    return this.#run(statements.relayUnpark(this.#from.relay, messageId));
  }

  /** Deletes a parked effect. Returns false if no effect with this id is parked. */
  async discard(messageId: string): Promise<boolean> {
    return this.#run(statements.relayDiscard(this.#from.relay, messageId));
  }

  /** Receives the next effects with these topics into the inbox. Returns their number. */
  async handOver(topics: readonly string[], options: HandOverOptions = {}): Promise<number> {
    return this.#run(statements.handOver(this.#from, topics, options));
  }
}
