/** Kysely: the `trx` of a transaction. */

import type { Parameter, Row } from "../statements/statement.js";
import { hasMethods, member, type Library } from "./execute.js";

/** The `trx` that `db.transaction()` passes. `isTransaction` excludes `db`. */
export interface KyselyTransaction {
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  executeQuery(query: any): Promise<{ rows: unknown[] }>;
  readonly isTransaction: true;
}

export const kysely: Library = {
  executeOn(candidate) {
    if (!isTransaction(candidate)) return undefined;
    return async (text, values) =>
      (await candidate.executeQuery(compiled(text, values))).rows as Row[];
  },
  isPool: (candidate) => hasMethods(candidate, "executeQuery") && !isTransaction(candidate),
};

function isTransaction(candidate: object): candidate is KyselyTransaction {
  return hasMethods(candidate, "executeQuery") && member(candidate, "isTransaction") === true;
}

/** Returns the object that `CompiledQuery.raw` of Kysely creates. */
function compiled(sql: string, values: readonly Parameter[]): object {
  const query = { kind: "RawNode", sqlFragments: [sql], parameters: [] };
  return { sql, parameters: [...values], query, queryId: { queryId: "idem-pg" } };
}
