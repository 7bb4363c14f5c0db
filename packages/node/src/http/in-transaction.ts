/** Processes a request in the transaction that claims it. */

import type { ClaimOutcome } from "../outcomes.js";
import { claimAndForbidCommit } from "../statements/claims.js";
import type { Client, Ending } from "../transactions/pool.js";
import { DisconnectedError, unlessAborted, type Result, type Task } from "./exchange.js";
import { find, replayed } from "./journal.js";
import { keepsWrites } from "./options.js";
import { Problem, problemOf } from "./problem.js";
import { Recorded, type CompleteResponse } from "./recorded.js";
import { RequestTransaction } from "./request-transaction.js";
import { retried } from "./retry.js";
import { recordAndAllowCommit } from "./statements.js";

/** How the transaction has ended. `passed`: rolled back, because the response is not recorded. */
type Outcome = Exclude<ClaimOutcome["outcome"], "claimed"> | "recorded" | "passed";

/** What a handler has done. */
interface Ran {
  readonly response: CompleteResponse;
  readonly keepsWrites: boolean;
  /** Returns whether the handler has used the transaction after its response. */
  readonly wasUsedLate: () => boolean;
}

/** Claims a request, runs its handler, records the response, and commits. */
export class TransactionAttempt<C extends Client> {
  protected readonly task: Task<C, RequestTransaction<C>>;
  /** Set when the handler has begun. */
  #response: Promise<CompleteResponse> | undefined;

  constructor(task: Task<C, RequestTransaction<C>>) {
    this.task = task;
  }

  /** Returns the result after the commit. Throws a Problem or the error of the handler. */
  async result(): Promise<Result> {
    try {
      const outcome = await retried(
        () => this.transact(),
        () => this.#response === undefined,
      );
      return await this.#resultOf(outcome);
    } catch (error) {
      if (error instanceof DisconnectedError) return { kind: "disconnected" };
      return await this.#afterFailure(error);
    }
  }

  /** Executes the transaction. */
  protected transact(): Promise<Outcome> {
    const { id, destination, fingerprint } = this.task.identity;
    const first = claimAndForbidCommit(id, destination, { wait: false, fingerprint });
    return this.task.transactor.transact<ClaimOutcome, Outcome>(
      { first, isolation: "default", hasSavepoint: true },
      async (client, claim) => {
        if (claim.outcome !== "claimed") return { commit: false, value: claim.outcome };
        return this.handled(client);
      },
    );
  }

  /** Runs the handler, and prepares the commit of its response. */
  protected async handled(client: C): Promise<Ending<Outcome>> {
    const { rules, transactor, identity } = this.task;
    this.#throwIfDisconnected();
    let ran: Ran | undefined;
    await transactor.savepoint(client, async (inner) => {
      ran = await this.#run(inner);
      return rules.keeps(ran.response.status) && ran.keepsWrites;
    });
    if (ran === undefined || !rules.keeps(ran.response.status)) {
      return { commit: false, value: "passed" };
    }
    const recorded = Recorded.of(identity.fingerprint, ran.response, rules.keepsHeader);
    this.#throwIfDisconnected();
    if (ran.wasUsedLate()) throw usedLate();
    return { commit: true, last: this.record(recorded) };
  }

  /** Returns the statement before COMMIT. */
  protected record(recorded: Recorded) {
    return recordAndAllowCommit(this.task.identity, recorded);
  }

  /** Runs the handler. It gets a client that sends no statements after its response. */
  async #run(client: C): Promise<Ran> {
    const { rules, transactor, exchange } = this.task;
    const fence = transactor.fence();
    const transaction = new RequestTransaction(fence.around(client), exchange.disconnected);
    try {
      this.#response = exchange.run(transaction, rules.limitOf);
      const response = await this.#unlessDisconnected(this.#response);
      return {
        response,
        keepsWrites: keepsWrites(response.status, transaction.keepsWrites),
        wasUsedLate: () => fence.wasUsedLate,
      };
    } finally {
      fence.close();
    }
  }

  async #resultOf(outcome: Outcome): Promise<Result> {
    const { transactor, identity } = this.task;
    switch (outcome) {
      case "recorded":
      case "passed":
        return { kind: "handler" };
      case "in_progress":
        throw new Problem("in-progress");
      case "mismatch":
        throw new Problem("mismatch");
      default:
        // In another transaction: a snapshot that is older than the record does not see it.
        return replayed(await find(transactor, identity), identity);
    }
  }

  /** The transaction can fail before its handler has ended, for example with the connection. */
  async #afterFailure(error: unknown): Promise<Result> {
    if (this.#response === undefined) throw problemOf(error);
    try {
      const { status } = await this.#unlessDisconnected(this.#response);
      if (!this.task.rules.keeps(status)) return { kind: "handler" };
    } catch (failure) {
      if (failure instanceof DisconnectedError) return { kind: "disconnected" };
      throw failure;
    }
    throw problemOf(error);
  }

  #unlessDisconnected<T>(promise: Promise<T>): Promise<T> {
    const { disconnected } = this.task.exchange;
    return unlessAborted(promise, disconnected, () => new DisconnectedError());
  }

  #throwIfDisconnected(): void {
    if (this.task.exchange.disconnected.aborted) throw new DisconnectedError();
  }
}

function usedLate(): Problem {
  const cause = new Error("the handler used its transaction after its response: send it last");
  return new Problem("failed", undefined, cause);
}
