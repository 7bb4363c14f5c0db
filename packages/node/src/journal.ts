import { idemError, leaseError, storable } from "./errors.js";
import type { Run } from "./executors/execute.js";
import type { MessageId } from "./message-id.js";
import { checkOptions } from "./options.js";
import {
  integer, json, nothing, nullable, oneOf, text, time, type Values,
} from "./statements/columns.js";
import { FunctionCall } from "./statements/statement.js";

/** The step of a message that is an external call. */
export interface Step {
  readonly id: MessageId;
  readonly destination: string;
  /** The name of the step, 1 to 255 bytes. */
  readonly step: string;
}

export interface BeginCallOptions {
  /** The content of the call. It must be the same at every attempt. */
  readonly request?: unknown;
  /** The token of the lease under which the message is processed. */
  readonly token?: bigint | undefined;
}

export interface FailCallOptions {
  readonly retryable: boolean;
}

const CALL = {
  /**
   * - `new`: the call was not made. Commit, then make the call.
   * - `unknown`: an earlier attempt began the call, and its result was not recorded.
   * - `done`: the call was made, and `response` is its recorded response.
   * - `failed`: the call is never made again: the external system rejected it, or its result cannot
   *   be stored. `error` says why.
   */
  state: oneOf("state", "new", "unknown", "done", "failed"),
  /** The number of the last attempt. */
  attempt: integer("attempt"),
  /** The start of the first attempt that may have had its effect. */
  begunAt: nullable(time("begun_at")),
  response: nullable(json("response")),
  error: nullable(text("error")),
};
const BEGUN_CALL = { ...CALL, idempotencyKey: text("idempotency_key") };
const JOURNAL_ENTRY = { ...CALL, step: text("step"), endedAt: nullable(time("ended_at")) };

/** What is known about a call when an attempt begins. */
export type BegunCall = Omit<Values<typeof BEGUN_CALL>, "state" | "response" | "error"> &
  (
    | { readonly state: "new" | "unknown"; readonly response: null; readonly error: null }
    | { readonly state: "done"; readonly response: unknown; readonly error: null }
    | { readonly state: "failed"; readonly response: null; readonly error: string }
  );

/** An external call in the journal of a message. */
export type JournalEntry = Values<typeof JOURNAL_ENTRY>;

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
    checkOptions("beginCall", options, "request", "token");
    const errorOf = options.token === undefined ? idemError : leaseError;
    const call = ofStep("idem_begin_call", step)
      .option("request", "json", options.request)
      .option("token", "bigint", options.token);
    return this.#run(call.row(BEGUN_CALL, (row) => row as BegunCall), errorOf);
  }

  /** Records the response of a call. */
  async finishCall(step: Step, response?: unknown): Promise<void> {
    const call = ofStep("idem_finish_call", step).option("response", "response", response);
    await this.#run(call.value(nothing));
  }

  /**
   * Records that a call failed. `retryable: true` states that this attempt certainly had no effect.
   * After `retryable: false` the call is never made again.
   */
  async failCall(step: Step, error: string, options: FailCallOptions): Promise<void> {
    checkOptions("failCall", options, "retryable");
    const call = ofStep("idem_fail_call", step).text(storable(error));
    await this.#run(call.option("retryable", "boolean", options.retryable).value(nothing));
  }

  /** Returns the external calls of a message, in the order in which they began. */
  async calls(id: MessageId, destination: string): Promise<JournalEntry[]> {
    const call = FunctionCall.of("idem_calls", id, destination);
    return this.#run(call.rows(JOURNAL_ENTRY, (row) => row));
  }
}

function ofStep(name: string, { id, destination, step }: Step): FunctionCall {
  return FunctionCall.of(name, id, destination).text(step);
}
