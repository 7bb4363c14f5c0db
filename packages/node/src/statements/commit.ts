/** The statements that forbid and allow COMMIT, so that only the owner of a transaction commits. */

import { nothing } from "./columns.js";
import { command, type Statement } from "./statement.js";

export const FORBIDDEN = nothing("idem_forbid_commit()");

/** Fails with 25P01 if the transaction in which COMMIT was forbidden has ended. */
export const ALLOWED = nothing("idem_allow_commit()");

export const FORBID_COMMIT = command(`SELECT ${FORBIDDEN.sql}`, undefined);

/** Returns the statement that allows COMMIT, with this value as its result. */
export function allowCommit<T>(value: T): Statement<T> {
  return command(`SELECT ${ALLOWED.sql}`, value);
}
