/** The statements of a protected request. */

import type { Step } from "../journal.js";
import { textOfJson } from "../json.js";
import { ALLOWED } from "../statements/commit.js";
import type { Statement } from "../statements/statement.js";
import type { Identity } from "./exchange.js";
import type { Recorded } from "./recorded.js";

/** The step of the journal that has the response. */
export const STEP = "http-response";

export function stepOf({ id, destination }: Identity): Step {
  return { id, destination, step: STEP };
}

/** Returns the value that the journal entry has as its request. */
export function requestOf({ fingerprint }: Identity): { fingerprint: string } {
  return { fingerprint: fingerprint.toString("hex") };
}

/**
 * Begins and finishes the journal entry, and allows COMMIT. One statement, so that nothing is
 * recorded if the transaction of the handler has ended. FROM is executed before the columns.
 */
export function recordAndAllowCommit(
  identity: Identity,
  recorded: Recorded,
): Statement<"recorded"> {
  const entry = `CAST($1 AS text), CAST($2 AS text), '${STEP}'`;
  const json = (parameter: string, type: string) => `CAST(CAST(${parameter} AS text) AS ${type})`;
  const finished = `idem_finish_call(${entry}, response => ${json("$4", "json")})`;
  return {
    text:
      `SELECT CAST(${finished} AS text) AS c1, ${ALLOWED.sql} AS c2 ` +
      `FROM idem_begin_call(${entry}, request => ${json("$3", "jsonb")})`,
    values: [
      identity.id,
      identity.destination,
      textOfJson(requestOf(identity)),
      textOfJson(recorded.stored),
    ],
    decode: () => "recorded",
  };
}
