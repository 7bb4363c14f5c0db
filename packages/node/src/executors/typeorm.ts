/** TypeORM: the `EntityManager` of a transaction. */

import type { Row } from "../statements/statement.js";
import { hasMethods, type Library } from "./execute.js";

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

export const typeorm: Library = {
  executeOn(candidate) {
    if (!isManager(candidate) || candidate.queryRunner === undefined) return undefined;
    return async (text, values) => (await candidate.query(text, [...values])) as Row[];
  },
  isPool: (candidate) =>
    hasMethods(candidate, "query", "createQueryRunner") ||
    (isManager(candidate) && candidate.queryRunner === undefined),
};

function isManager(candidate: object): candidate is TypeOrmManager {
  return (
    hasMethods(candidate, "query", "getRepository") && !hasMethods(candidate, "createQueryRunner")
  );
}
