/** Knex: the `trx` of a transaction. */

import type { Parameter, Row } from "../statements/statement.js";
import { hasMethods, member, type Library } from "./execute.js";

/** The `trx` that `knex.transaction` passes or returns. `isCompleted` excludes `knex`. */
export interface KnexTransaction {
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  raw(sql: string, bindings: any): PromiseLike<unknown>;
  isCompleted(): boolean;
}

export const knex: Library<KnexTransaction> = {
  isTransaction: (candidate) =>
    hasMethods(candidate, "raw", "isCompleted") && member(candidate, "isTransaction") === true,
  isPool: (candidate) =>
    hasMethods(candidate, "raw", "transaction") && !knex.isTransaction(candidate),
  async execute(on, text, values) {
    const { sql, bindings } = withQuestionMarks(text, values);
    return ((await on.raw(sql, bindings)) as { rows: Row[] }).rows;
  },
};

/** Returns the statement with ? for $1, and the values in the order of the placeholders. */
function withQuestionMarks(text: string, values: readonly Parameter[]) {
  const bindings: Parameter[] = [];
  const sql = text.replace(/\$(\d+)/g, (_, number: string) => {
    bindings.push(values[Number(number) - 1] ?? null);
    return "?";
  });
  return { sql, bindings };
}
