/** The statements of external calls. */

import { UnexpectedResultError } from "../errors.js";
import type { MessageId } from "../message-id.js";
import { integer, json, nothing, nullable, text, time } from "./columns.js";
import { FunctionCall, type Statement } from "./statement.js";

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

/**
 * What is known about a call when an attempt begins.
 *
 * - `new`: the call was not made. Commit, then make the call.
 * - `unknown`: an earlier attempt began the call, and its result was not recorded.
 * - `done`: the call was made, and `response` is its recorded response.
 * - `failed`: the external system rejected the call permanently with `error`.
 */
export type BegunCall = {
  readonly idempotencyKey: string;
  /** The number of this attempt. */
  readonly attempt: number;
  /** The start of the first attempt that may have had its effect. */
  readonly begunAt: Date | null;
} & (
  | { readonly state: "new" }
  | { readonly state: "unknown" }
  | { readonly state: "done"; readonly response: unknown }
  | { readonly state: "failed"; readonly error: string }
);

export type CallState = BegunCall["state"];

/** An external call in the journal of a message. */
export interface JournalEntry {
  readonly step: string;
  readonly state: CallState;
  readonly attempt: number;
  readonly begunAt: Date | null;
  readonly endedAt: Date | null;
  readonly response: unknown;
  readonly error: string | null;
}

const CALL = {
  state: text("state"),
  attempt: integer("attempt"),
  begunAt: nullable(time("begun_at")),
  response: nullable(json("response")),
  error: nullable(text("error")),
};
const BEGUN_CALL = { ...CALL, idempotencyKey: text("idempotency_key") };
const JOURNAL_ENTRY = { ...CALL, step: text("step"), endedAt: nullable(time("ended_at")) };

export function beginCall(step: Step, options: BeginCallOptions): Statement<BegunCall> {
  return ofStep("idem_begin_call", step)
    .option("request", "json", options.request)
    .option("token", "bigint", options.token)
    .row(BEGUN_CALL, ({ state, response, error, ...begun }) => ({
      ...begun,
      ...progress(callState(state), response, error),
    }));
}

function progress(state: CallState, response: unknown, error: string | null) {
  switch (state) {
    case "new":
    case "unknown":
      return { state };
    case "done":
      return { state, response };
    case "failed":
      return { state, error: error ?? "" };
  }
}

export function finishCall(step: Step, response: unknown): Statement<undefined> {
  return ofStep("idem_finish_call", step).option("response", "json", response).value(nothing);
}

export function failCall(step: Step, error: string, retryable: boolean): Statement<undefined> {
  return ofStep("idem_fail_call", step)
    .text(error)
    .option("retryable", "boolean", retryable)
    .value(nothing);
}

export function calls(id: MessageId, destination: string): Statement<JournalEntry[]> {
  return new FunctionCall("idem_calls")
    .id(id)
    .text(destination)
    .rows(JOURNAL_ENTRY, (row) => ({ ...row, state: callState(row.state) }));
}

function ofStep(name: string, step: Step): FunctionCall {
  return new FunctionCall(name).id(step.id).text(step.destination).text(step.step);
}

function callState(state: string): CallState {
  switch (state) {
    case "new":
    case "unknown":
    case "done":
    case "failed":
      return state;
    default:
      throw new UnexpectedResultError(`an external call has the state ${state}`);
  }
}
