/** The errors of this package. */

import { serverError } from "./driver-error.js";

const CONFLICTS: ReadonlySet<string> = new Set(["40001", "40P01", "55P03"]);
const CONNECTION_LOST: ReadonlySet<string> = new Set([
  "57P01", "57P02", "57P03", "57P05", "25P03", "53300",
]);
/** The lease, the claim or the batch is not held, or the step has another result. */
export const NOT_HELD = "55000";

/** The server is read-only, has no resources, or an operator intervened. */
const ENVIRONMENT = /^(25006|53|57|58)/;

/** An error of the server, or of the connection. `cause` is the error of the driver. */
export class IdemError extends Error {
  override name = "IdemError";
  /** Five characters, or undefined if the server did not report an error. */
  readonly sqlstate: string | undefined;
  /** What to do, as a sentence. */
  readonly hint: string | undefined;
  /** Whether the whole transaction can succeed if it is executed again. */
  readonly retryable: boolean;

  constructor(message: string, options: IdemErrorOptions) {
    super(message, { cause: options.cause });
    this.sqlstate = options.sqlstate;
    this.hint = options.hint;
    this.retryable = options.retryable ?? isRetryable(options.sqlstate, options.cause);
  }
}

export interface IdemErrorOptions {
  readonly sqlstate?: string | undefined;
  readonly hint?: string | undefined;
  readonly retryable?: boolean | undefined;
  readonly cause?: unknown;
}

/**
 * The lease was lost: it expired and another process acquired the message, or the message was
 * completed. Stop working on the message.
 */
export class LeaseLostError extends IdemError {
  override name = "LeaseLostError";
}

/**
 * The reply to COMMIT is missing: the connection was lost, or the driver stopped waiting. So the
 * transaction may or may not have committed. Do not acknowledge the message: when it is delivered
 * again, its claim shows whether it was committed.
 */
export class CommitUnknownError extends IdemError {
  override name = "CommitUnknownError";
}

/** The server returned a result that this version of the package does not support. */
export class UnexpectedResultError extends Error {
  override name = "UnexpectedResultError";
}

/** Returns the error of a statement as an `IdemError`. */
export function idemError(error: unknown): IdemError {
  if (error instanceof IdemError) return error;
  const found = serverError(error);
  if (found !== undefined) return new IdemError(found.message, { ...found, cause: error });
  return new IdemError(error instanceof Error ? error.message : String(error), { cause: error });
}

/** Returns the error of a statement that takes the token of a lease. */
export function leaseError(error: unknown): IdemError {
  const found = idemError(error);
  if (found.sqlstate !== NOT_HELD) return found;
  const { sqlstate, hint, cause } = found;
  return new LeaseLostError(found.message, { sqlstate, hint, cause });
}

/** Returns the error of a COMMIT. After an ERROR the server has certainly rolled back. */
export function commitError(error: unknown): IdemError {
  if (serverError(error)?.severity === "ERROR") return idemError(error);
  return new CommitUnknownError(
    "the reply to COMMIT is missing: the transaction may or may not have committed",
    { sqlstate: serverError(error)?.sqlstate, retryable: true, cause: error },
  );
}

/** Returns whether the environment caused the error, and not what was to be written. */
export function isOfEnvironment({ retryable, sqlstate = "" }: IdemError): boolean {
  return retryable || ENVIRONMENT.test(sqlstate);
}

/** Returns the text of an error as PostgreSQL can store it. */
export function storable(text: string): string {
  return text.replaceAll("\0", "").replace(/\p{Surrogate}/gu, "\ufffd");
}

/** Without a SQLSTATE the connection failed, unless the error shows a fault in the program. */
function isRetryable(sqlstate: string | undefined, cause: unknown): boolean {
  if (sqlstate === undefined) return !(cause instanceof TypeError || cause instanceof RangeError);
  return sqlstate.startsWith("08") || CONFLICTS.has(sqlstate) || CONNECTION_LOST.has(sqlstate);
}
