/** Recognizes the object that executes statements in the transaction of the user. */

import { drizzle, type DrizzleTransaction } from "./drizzle.js";
import type { Execute, Library } from "./execute.js";
import { knex, type KnexTransaction } from "./knex.js";
import { kysely, type KyselyTransaction } from "./kysely.js";
import { postgres, type PostgresTransaction } from "./postgres.js";
import { prisma, type PrismaTransaction } from "./prisma.js";
import { query, type QueryExecutor } from "./query.js";
import { typeorm, type TypeOrmManager } from "./typeorm.js";

/** What executes statements in the transaction of the user. A pool is not an executor. */
export type Executor =
  | QueryExecutor
  | PostgresTransaction
  | DrizzleTransaction
  | KnexTransaction
  | KyselyTransaction
  | PrismaTransaction
  | TypeOrmManager;

/** `query` is the last one, because objects of other libraries have a method `query` too. */
const LIBRARIES: readonly Library<never>[] = [
  postgres, drizzle, knex, kysely, prisma, typeorm, query,
];

/** Returns how to execute statements. Throws a TypeError for a pool and for any other object. */
export function executeOn(executor: Executor): Execute {
  const candidate: unknown = executor;
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
  if (library !== undefined) {
    return (text, values) => library.execute(candidate as never, text, [...values]);
  }
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
