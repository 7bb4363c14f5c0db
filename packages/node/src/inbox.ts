import type { InboxMessage, NextOptions, ReceivedMessage } from "./inbox-message.js";
import type { Run } from "./run.js";
import * as statements from "./statements/inbox.js";

/**
 * Messages that are stored first and processed later. Complete a message with `complete` of `Idem`,
 * or claim it in the transaction of the work.
 */
export class Inbox {
  readonly #run: Run;

  /** @internal */
  constructor(run: Run) {
    this.#run = run;
  }

  /** Stores a message. Returns false if it is already received, dead or claimed. */
  async receive(message: ReceivedMessage): Promise<boolean> {
    return this.#run(statements.receive(message));
  }

  /** Leases due messages, and returns them in order. */
  async next(destination: string, options: NextOptions = {}): Promise<InboxMessage[]> {
    return this.#run(statements.next(destination, options));
  }

  /** Waits until `next` can return a message. Returns false after `timeoutMs` (1,000). */
  async wait(destination: string, timeoutMs?: number): Promise<boolean> {
    return this.#run(statements.nextWait(destination, timeoutMs));
  }
}
