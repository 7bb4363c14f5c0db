/** Processes a request under a lease, for work that cannot share a transaction. */

import { IdemError, LeaseLostError } from "../errors.js";
import { idem } from "../idem.js";
import { leaseOn, type Lease, type NotLeased } from "../lease.js";
import type { Client } from "../transactions/pool.js";
import { unlessAborted, type Result, type Task } from "./exchange.js";
import { find, replayed } from "./journal.js";
import { Problem, problemOf } from "./problem.js";
import { Recorded, type CompleteResponse } from "./recorded.js";
import { retried } from "./retry.js";
import { requestOf, stepOf } from "./statements.js";

/** The entry was begun for another request. */
const OTHER_REQUEST = "23000";
/** The entry has another result. */
const OTHER_RESULT = "55000";

/** The lease of a protected request, as its handler sees it. */
export type RequestLease = Pick<Lease<Client>, "once" | "signal">;

/** Leases a request, runs its handler, and completes the lease with the record. */
export class LeaseAttempt {
  readonly #task: Task<Client, RequestLease>;

  constructor(task: Task<Client, RequestLease>) {
    this.#task = task;
  }

  /** Returns the result after the record. Throws a Problem or the error of the handler. */
  async result(): Promise<Result> {
    const { rules, transactor, identity } = this.#task;
    const { id, destination } = identity;
    const acquire = () => leaseOn(transactor, { id, destination, leaseMs: rules.leaseMs });
    const held: Lease<Client> | NotLeased = await retried(acquire).catch(rethrow);
    switch (held.outcome) {
      case "acquired":
        return this.#under(held);
      case "duplicate":
        return replayed(await find(transactor, identity), identity);
      case "in_progress":
        throw new Problem("in-progress");
      case "exhausted":
        await bury(held);
        throw new Problem("exhausted");
      case "dead":
        throw new Problem("exhausted");
    }
  }

  async #under(held: Lease<Client>): Promise<Result> {
    let response;
    try {
      await this.#bindKey();
      response = await this.#run(held);
    } catch (error) {
      await giveBack(held);
      throw error;
    }
    if (this.#task.rules.keeps(response.status)) return this.#complete(held, response);
    await giveBack(held);
    return { kind: "handler" };
  }

  /**
   * Binds the key to this request. An attempt at another request with the key may have had an
   * effect outside of the database, so the key cannot be used for this request.
   */
  async #bindKey(): Promise<void> {
    const { transactor, identity } = this.#task;
    const options = { request: requestOf(identity) };
    const step = stepOf(identity);
    const begin = () => transactor.run((client) => idem(client).journal.beginCall(step, options));
    await retried(begin).catch((error: unknown) => {
      if (error instanceof IdemError && error.sqlstate === OTHER_REQUEST) {
        throw new Problem("mismatch");
      }
      throw problemOf(error);
    });
  }

  /** Runs the handler. After the loss of the lease it continues, but its client waits no more. */
  #run(held: Lease<Client>): Promise<CompleteResponse> {
    const { rules, exchange } = this.#task;
    const { signal } = held;
    const once: RequestLease["once"] = (...given) => held.once(...given);
    const response = exchange.run({ signal, once }, rules.limitOf);
    // Another process may now work on the request. A repeated request shows the result.
    return unlessAborted(response, signal, () => new Problem("in-doubt"));
  }

  /** Records the response and completes the lease, in one transaction. */
  async #complete(held: Lease<Client>, response: CompleteResponse): Promise<Result> {
    const { rules, identity } = this.#task;
    try {
      const recorded = Recorded.of(identity.fingerprint, response, rules.keepsHeader);
      return await this.#completed(held, recorded);
    } catch (error) {
      // If the completion has committed after all, the release fails.
      void held.dispose().catch(ignore);
      throw problemOf(error).afterWork();
    }
  }

  async #completed(held: Lease<Client>, recorded: Recorded): Promise<Result> {
    const step = stepOf(this.#task.identity);
    const complete = () =>
      held.complete(async (client) => {
        await idem(client).journal.finishCall(step, recorded.stored);
        return undefined;
      });
    try {
      await retried(complete);
    } catch (error) {
      if (isLost(error)) return this.#afterLoss(recorded);
      throw error;
    }
    return { kind: "handler" };
  }

  /** Returns the result after another process, or a commit without a reply, has won. */
  async #afterLoss(recorded: Recorded): Promise<Result> {
    const { transactor, identity } = this.#task;
    const found = await find(transactor, identity);
    if (found === null) throw new Problem("in-doubt");
    return found.equals(recorded) ? { kind: "handler" } : replayed(found, identity);
  }
}

function isLost(error: unknown): boolean {
  if (error instanceof LeaseLostError) return true;
  return error instanceof IdemError && error.sqlstate === OTHER_RESULT;
}

/** Releases the lease, so that the next request can run at once. The attempt does not count. */
async function giveBack(held: Lease<Client>): Promise<void> {
  // A lease that is lost, or that cannot be released, expires.
  if (held.signal.aborted) return;
  await retried(() => held.release()).catch(() => {
    void held.dispose().catch(ignore);
  });
}

/** Makes the request a dead letter, because it has no attempts left. */
async function bury(held: Lease<Client>): Promise<void> {
  const error = held.lastError ?? "the request has no attempts left";
  await held.release({ error, final: true }).catch(() => {
    void held.dispose().catch(ignore);
  });
}

function rethrow(error: unknown): never {
  throw problemOf(error);
}

function ignore(): void {
  // The lease expires.
}
