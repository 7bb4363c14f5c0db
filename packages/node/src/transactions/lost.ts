/** Which transactions can be repeated. */

import { serverError } from "../driver-error.js";
import { CommitUnknownError } from "../errors.js";

const CONFLICTS: ReadonlySet<string | undefined> = new Set(["40001", "40P01"]);

/**
 * The errors of transactions whose connection was lost before COMMIT was sent. The error of a
 * handler is thrown as it is, and does not show whose connection was lost.
 */
const lost = new WeakSet();

export function markLost(error: unknown): void {
  const isKnown = !(error instanceof CommitUnknownError);
  if (isKnown && typeof error === "object" && error !== null) lost.add(error);
}

/** Returns whether the transaction has certainly not committed, and can succeed later. */
export function isRepeatable(error: unknown): boolean {
  if (error instanceof CommitUnknownError) return false;
  const isLost = typeof error === "object" && error !== null && lost.has(error);
  return isLost || CONFLICTS.has(serverError(error)?.sqlstate);
}
