/**
 * Marks a transaction, so that it is known before COMMIT whether the work has ended it.
 * `idem_forbid_commit` does more, but only consumers have the privilege to call it.
 */

import { IdemError } from "../errors.js";
import { command, type Statement } from "../statements/statement.js";

/** The end of the transaction resets the setting, so that it is empty or does not exist. */
const MARK = "idem_pg.transaction";

/** ln(0) fails with this code. Nothing else that COMMIT executes does. */
const LOGARITHM_OF_ZERO = "2201E";

export const MARK_TRANSACTION = command(`SET LOCAL ${MARK} = 'open'`, undefined);

/** Returns the statement that fails without the mark. Its result is this value. */
export function checkMark<T>(value: T): Statement<T> {
  return command(`SELECT ln(length(coalesce(current_setting('${MARK}', true), '')))`, value);
}

/** Returns the error of `checkMark` as one that tells what has happened. */
export function markError(error: unknown): unknown {
  if (!(error instanceof IdemError) || error.sqlstate !== LOGARITHM_OF_ZERO) return error;
  return hasEndedTransaction(error);
}

/** Returns the error of work that has ended its own transaction. */
export function hasEndedTransaction(cause?: unknown): IdemError {
  return new IdemError("a statement of the work has ended its transaction", {
    sqlstate: "25P01",
    hint: "To roll back, throw an error. To roll back a part of the work, use a savepoint.",
    retryable: false,
    cause,
  });
}
