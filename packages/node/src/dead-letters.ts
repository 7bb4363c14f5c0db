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
}
