/** Recognizes the object that executes statements in the transaction of the user. */

import { idemError } from "../errors.js";
import type { Library, Run } from "./execute.js";
import { LIBRARIES } from "./libraries.js";
import type { DrizzleTransaction, KnexTransaction, KyselyTransaction } from "./libraries.js";
import type { PostgresTransaction, PrismaTransaction, TypeOrmManager } from "./libraries.js";
import type { QueryExecutor } from "./query.js";

/** What executes statements in the transaction of the user. A pool is not an executor. */
export type Executor =
  | QueryExecutor
  | PostgresTransaction
  | DrizzleTransaction
  | KnexTransaction
  | KyselyTransaction
  | PrismaTransaction
  | TypeOrmManager;

/**
 * Returns the function that executes statements. An error of the driver becomes an `IdemError`.
 * Throws a TypeError for a pool and for any other object.
 */
export function runOn(executor: Executor): Run {
  const library = libraryOf(executor);
  return async (statement, errorOf = idemError) => {
    let rows;
    try {
      rows = await library.execute(executor as never, statement.text, [...statement.values]);
    } catch (error) {
      throw errorOf(error);
    }
    return statement.decode(rows);
  };
}

function libraryOf(candidate: unknown): Library<never> {
  if (!isObject(candidate)) {
    throw new TypeError(`idem needs the connection of a transaction, not ${typeof candidate}`);
  }
  if (LIBRARIES.some((library) => library.isPool(candidate))) {
    throw new TypeError(
      `idem needs the connection of a transaction, not a pool (${nameOf(candidate)}). A pool ` +
        "executes each statement on another connection, so the claim and the work would not " +
        "commit together. Begin a transaction, and pass the object of the transaction.",
    );
  }
  const library = LIBRARIES.find(({ isTransaction }) => isTransaction(candidate));
  if (library !== undefined) return library;
  throw new TypeError(
    `idem does not support ${nameOf(candidate)}: pass the transaction of a supported library, or ` +
      "an object with a method query(text, values)",
  );
}

function isObject(candidate: unknown): candidate is object {
  return typeof candidate === "function" || (typeof candidate === "object" && candidate !== null);
}

function nameOf(candidate: object): string {
  const { constructor } = candidate;
  return typeof constructor === "function" ? constructor.name : "an object without a constructor";
}
