/** The errors of tools whose calls are made once. */

import { IdemError } from "./errors.js";

/** The call is in progress in another process, or waits for a retry. Repeat it later. */
export class ToolBusyError extends Error {
  override name = "ToolBusyError";
  readonly settlement = "redeliver";
  /** The message id of the call: its id with its scope. */
  readonly id: string;
  /** When the call can be repeated, if that is known. */
  readonly retryAfterMs: number | null;

  constructor(id: string, retryAfterMs: number | null) {
    super(`the call ${quoted(id)} is in progress`);
    this.id = id;
    this.retryAfterMs = retryAfterMs;
  }
}

/** The calls of the tool with this id have failed, and none of them is repeated. */
export class ToolFailedError extends Error {
  override name = "ToolFailedError";
  readonly settlement = "reject";

  static exhausted(id: string): ToolFailedError {
    return new ToolFailedError(`the call ${quoted(id)} has no attempt left`);
  }

  static notRecorded(id: string): ToolFailedError {
    const text = `the call ${quoted(id)} was processed, and its result is not recorded`;
    return new ToolFailedError(text);
  }
}

/** The request of a step differs from that of its first attempt. */
const OTHER_REQUEST = "23000";

/** Returns the error of a call that was begun with other arguments. */
export function mismatch(id: string, error: unknown): ToolFailedError | undefined {
  if (!(error instanceof IdemError) || error.sqlstate !== OTHER_REQUEST) return undefined;
  const text = `the call ${quoted(id)} was made before with other arguments`;
  return new ToolFailedError(text, { cause: error });
}

function quoted(id: string): string {
  return JSON.stringify(id);
}
