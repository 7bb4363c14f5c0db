/** TypeORM: the `EntityManager` of a transaction. */

import type { Row } from "../statements/statement.js";
import { hasMethods, member, type Library } from "./execute.js";

/**
 * The `EntityManager` that the callback of `dataSource.transaction` gets. TypeScript cannot exclude
 * `dataSource.manager`, which has the same type, so it is an error at run time only.
 */
export interface TypeOrmManager {
  query(text: string, values?: unknown[]): Promise<unknown>;
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  getRepository(target: any): unknown;
  readonly queryRunner?: object;
  /** Excludes `DataSource`. */
  readonly createQueryRunner?: never;
}

export const typeorm: Library<TypeOrmManager> = {
  isTransaction: (candidate) => isManager(candidate) && hasRunner(candidate),
  isPool: (candidate) =>
    hasMethods(candidate, "query", "createQueryRunner") ||
    (isManager(candidate) && !hasRunner(candidate)),
  execute: async (on, text, values) => (await on.query(text, values)) as Row[],
};

function isManager(candidate: object): boolean {
  return (
    hasMethods(candidate, "query", "getRepository") && !hasMethods(candidate, "createQueryRunner")
  );
}

function hasRunner(candidate: object): boolean {
  return member(candidate, "queryRunner") !== undefined;
}
