import type { RejectedLetter } from "./letter.js";
import type { MessageId } from "./message-id.js";
import type { Run } from "./run.js";
import * as statements from "./statements/dead-letters.js";

/** Messages that are not retried until an operator decides about them. */
export class DeadLetters {
  readonly #run: Run;

  /** @internal */
  constructor(run: Run) {
    this.#run = run;
  }

  /**
   * Stores a message of a broker that is not leased. Returns false if it is a dead letter already,
   * or was processed. With the id null, the key is a hash of the message.
   */
  async reject(
    id: MessageId | null,
    destination: string,
    letter: RejectedLetter,
  ): Promise<boolean> {
    return this.#run(statements.reject(id, destination, letter));
  }

  /** Makes a dead letter due again. Returns false if there is none; fails if it was processed. */
  async requeue(id: MessageId, destination: string): Promise<boolean> {
    return this.#run(statements.requeue(id, destination));
  }

  /** Deletes a dead letter and claims its message. Returns false if there is no dead letter. */
  async discard(id: MessageId, destination: string): Promise<boolean> {
    return this.#run(statements.discard(id, destination));
  }

  /** Sends a dead letter to a topic. Returns its new message id, or null if it was not sent. */
  async forward(id: MessageId, destination: string, topic: string): Promise<string | null> {
    return this.#run(statements.forward(id, destination, topic));
  }

  /** Makes dead letters due again. Returns their number. */
  async requeueAll(destination: string, selection: statements.Selection = {}): Promise<number> {
    return this.#run(statements.requeueAll(destination, selection));
  }

  /** Deletes dead letters and claims their messages. Returns their number. */
  async discardAll(destination: string, selection: statements.Selection = {}): Promise<number> {
    return this.#run(statements.discardAll(destination, selection));
  }

  /** Sends dead letters to a topic. Returns their number. */
  async forwardAll(
    destination: string,
    topic: string,
    selection: statements.Selection = {},
  ): Promise<number> {
    return this.#run(statements.forwardAll(destination, topic, selection));
  }
}
