/** Tools of AI agents and other functions with an effect outside, which are called once. */

import { CallFailedError } from "./call-errors.js";
import { throwIfGenerator, type CallContext, type OnUnknown } from "./calls.js";
import { UnexpectedResultError } from "./errors.js";
import { idem } from "./idem.js";
import type { BegunCall, Step } from "./journal.js";
import { textOfJson, type Jsonify } from "./json.js";
import { lease, type Lease } from "./lease.js";
import { isScope, scopedId, type MessageId } from "./message-id.js";
import { mismatch, ToolBusyError, ToolFailedError } from "./tool-errors.js";
import { checkOptions } from "./options.js";
import { transactions } from "./transactions/index.js";
import type { Client, Pool } from "./transactions/pool.js";

/** The step of the journal that has the result of a tool. */
const STEP = "tool";

/**
 * A tool. `context` is what the framework of the agent passes to each call. `call` has the
 * idempotency key for the external system, and a signal that aborts when the lease is lost.
 */
export type Tool<A, C, R> = (args: A, context: C, call: CallContext) => Promise<R>;

/** A tool as the framework calls it. A context that the tool does not use can be left out. */
export type OnceTool<A, C, R> = (
  args: A,
  ...context: unknown extends C ? [context?: C] : [context: C]
) => Promise<Jsonify<R>>;

export interface ToolOptions<A, C, R> {
  /**
   * Returns the conversation or session in which the ids are unique. Null: they are unique
   * everywhere, as UUIDs are.
   */
  readonly scope: (args: A, context: C) => string | null;
  /**
   * Returns the id of a call, for example the id that the model gave to its tool call. Calls with
   * the same id in the same scope are the same call. If the ids change when the model repeats a
   * call, return `toolCallKey(…)`.
   */
  readonly id: (args: A, context: C) => MessageId;
  /** What to do if a process died in the middle of the call. See `OnUnknown`. */
  readonly onUnknown: OnUnknown<R>;
  /** Returns what must be the same at every call with the same id. The arguments by default. */
  readonly request?: ((args: A, context: C) => unknown) | undefined;
  /** The duration of the lease. A call can be repeated so long after its process died. */
  readonly leaseMs?: number | undefined;
}

/** One call: its id, the rest of its content, and how it is made. */
interface ToolCall<R> {
  readonly id: string;
  readonly destination: string;
  readonly request: unknown;
  readonly make: (call: CallContext) => Promise<R>;
}

/**
 * Makes each call of a tool once. A repeated call returns the recorded result, as JSON represents
 * it.
 *
 * ```ts
 * const refund = once(pool, "tools.refund", sendRefund, {
 *   scope: (args, context) => context.conversationId,
 *   id: (args, context) => context.toolCallId,
 *   onUnknown: "fail",
 * });
 * ```
 *
 * Fails with a `ToolBusyError` if the call is in progress or waits for a retry, with a
 * `ToolFailedError` if no attempt is left or the id was used with other arguments, and with a
 * `CallFailedError` if the tool failed, or its result is unknown or cannot be stored.
 *
 * The message id of a call is `by:N:SCOPE:ID`, where N is the number of bytes of the scope, or
 * `all:ID` without a scope. `finishCall` of `Journal` takes it, after a person has found a result.
 *
 * @param pool a `Pool` of node-postgres or the `sql` of postgres.js.
 */
export function once<A, C, R>(
  pool: Pool,
  destination: string,
  tool: Tool<A, C, R>,
  options: ToolOptions<A, C, R>,
): OnceTool<A, C, R> {
  throwIfGenerator(tool);
  checkOptions("once", options, "scope", "id", "onUnknown", "request", "leaseMs");
  const { leaseMs, onUnknown, request = (args: A) => args } = options;
  return async (args, ...rest) => {
    // Without a context its type is unknown, which undefined is too.
    const context = rest[0] as C;
    const id = scopedId(scopeOf(options.scope(args, context)), options.id(args, context));
    const make = (call: CallContext) => tool(args, context, call);
    const call = { id, destination, request: request(args, context), make };
    // A request that is no JSON fails here, before it takes an attempt.
    if (call.request !== undefined) textOfJson(call.request);
    const held = await lease(pool, { id, destination, leaseMs });
    switch (held.outcome) {
      case "acquired":
        return makeOnce(held, call, onUnknown);
      case "duplicate":
        return recorded(pool, call);
      case "in_progress":
        throw new ToolBusyError(id, held.retryAfterMs);
      case "exhausted":
        return withoutAttempt(pool, held, call);
      case "dead":
        throw ToolFailedError.exhausted(id);
    }
  };
}

function scopeOf(scope: unknown): string | null {
  if (scope === null || (typeof scope === "string" && isScope(scope))) return scope;
  throw new TypeError("scope returns a text that PostgreSQL can store, or null");
}

/** Makes the call, or returns the result of an earlier attempt. Ends the lease. */
async function makeOnce<R>(
  held: Lease<Client>,
  call: ToolCall<R>,
  onUnknown: OnUnknown<R>,
): Promise<Jsonify<R>> {
  try {
    const result = await held.once(STEP, call.request, call.make, { onUnknown });
    await held.complete();
    return result;
  } catch (error) {
    throw await ended(held, call, error);
  } finally {
    // After any other error the attempt counts.
    await held.dispose();
  }
}

/** Ends the lease if the error does not count as an attempt. Returns the error of the call. */
async function ended(held: Lease<Client>, { id }: ToolCall<unknown>, error: unknown) {
  if (error instanceof CallFailedError) {
    // The failure is the result of the call, so the message is completed.
    if (error.failure === "refused") await held.complete();
    // A person records the result. Until then every call fails in this way.
    if (error.failure === "unknown") await held.release();
    return error;
  }
  const other = mismatch(id, error);
  if (other !== undefined) await held.release();
  return other ?? error;
}

/** Returns the result of the last attempt, if it ended between the record and the completion. */
async function withoutAttempt<R>(
  pool: Pool,
  held: Lease<Client>,
  call: ToolCall<R>,
): Promise<Jsonify<R>> {
  try {
    const found = await find(pool, call, held.token);
    if (found === undefined) {
      // Otherwise the call would seem to be in progress.
      await held.release({ error: held.lastError ?? "no attempt is left", final: true });
      throw ToolFailedError.exhausted(call.id);
    }
    await held.complete();
    return resultOf(found) as Jsonify<R>;
  } finally {
    // If the release fails, the lease is not renewed any more.
    await held.dispose();
  }
}

/** Returns the result that an earlier call has recorded. */
async function recorded<R>(pool: Pool, call: ToolCall<R>): Promise<Jsonify<R>> {
  const found = await find(pool, call);
  if (found === undefined) throw ToolFailedError.notRecorded(call.id);
  return resultOf(found) as Jsonify<R>;
}

function resultOf(begun: BegunCall): unknown {
  switch (begun.state) {
    case "done":
      return begun.response;
    case "failed":
      throw CallFailedError.refused(STEP, begun.error);
    default:
      throw new UnexpectedResultError(`a call that has ended has the state ${begun.state}`);
  }
}

/** Returns the step if it has a result. Fails if it was made with other arguments. */
async function find(
  pool: Pool,
  call: ToolCall<unknown>,
  token?: bigint,
): Promise<BegunCall | undefined> {
  const { id, destination, request } = call;
  const step: Step = { id, destination, step: STEP };
  const found = transactions(pool)(async (client) => {
    const { journal } = idem(client as Client);
    const entries = await journal.calls(id, destination);
    const entry = entries.find((other) => other.step === STEP);
    if (entry?.state !== "done" && entry?.state !== "failed") return undefined;
    // Compares the arguments. The step has ended already, so this writes nothing.
    return journal.beginCall(step, { request, token });
  });
  return found.catch((error: unknown) => {
    throw mismatch(id, error) ?? error;
  });
}
