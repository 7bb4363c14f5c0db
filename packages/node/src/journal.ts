import { idemError, leaseError } from "./errors.js";
import type { MessageId } from "./message-id.js";
import type { Run } from "./run.js";
import * as statements from "./statements/journal.js";
import type { BeginCallOptions, BegunCall, JournalEntry, Step } from "./statements/journal.js";

/**
 * The external calls of messages. Each function needs a transaction of its own. `once` of a leased
 * message does all of this.
 */
export class Journal {
  readonly #run: Run;

  /** @internal */
  constructor(run: Run) {
    this.#run = run;
  }

  /** Begins an attempt of a call. Commit before you make the call. */
  async beginCall(step: Step, options: BeginCallOptions = {}): Promise<BegunCall> {
    const errorOf = options.token === undefined ? idemError : leaseError;
    return this.#run(statements.beginCall(step, options), errorOf);
  }

  /** Records the response of a call. */
  async finishCall(step: Step, response?: unknown): Promise<void> {
    await this.#run(statements.finishCall(step, response));
  }

  /**
   * Records that a call failed. `retryable: true` states that this attempt certainly had no effect.
   * After `retryable: false` the call is never made again.
   */
  async failCall(step: Step, error: string, options: FailCallOptions): Promise<void> {
    await this.#run(statements.failCall(step, error, options.retryable));
  }

  /** Returns the external calls of a message, in the order in which they began. */
  async calls(id: MessageId, destination: string): Promise<JournalEntry[]> {
    return this.#run(statements.calls(id, destination));
  }
}

export interface FailCallOptions {
  readonly retryable: boolean;
}
