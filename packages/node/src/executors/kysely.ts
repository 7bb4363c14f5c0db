/** Kysely: the `trx` of a transaction. */

import type { Parameter, Row } from "../statements/statement.js";
import { hasMethods, member, type Library } from "./execute.js";

/** The `trx` that `db.transaction()` passes. `isTransaction` excludes `db`. */
export interface KyselyTransaction {
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  executeQuery(query: any): Promise<{ rows: unknown[] }>;
  readonly isTransaction: true;
}

export const kysely: Library<KyselyTransaction> = {
  isTransaction: (candidate) =>
    hasMethods(candidate, "executeQuery") && member(candidate, "isTransaction") === true,
  isPool: (candidate) =>
    hasMethods(candidate, "executeQuery") && !kysely.isTransaction(candidate),
  execute: async (on, text, values) =>
    (await on.executeQuery(compiled(text, values))).rows as Row[],
};

/** Returns the object that `CompiledQuery.raw` of Kysely creates. */
function compiled(sql: string, parameters: Parameter[]): object {
  const query = { kind: "RawNode", sqlFragments: [sql], parameters: [] };
  return { sql, parameters, query, queryId: { queryId: "idem-pg" } };
}
