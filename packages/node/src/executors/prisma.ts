/** Prisma: the `tx` of an interactive transaction. */

import type { Row } from "../statements/statement.js";
import { hasMethods, type Library } from "./execute.js";

/** The `tx` that the callback of `prisma.$transaction` gets. `$connect` excludes `prisma`. */
export interface PrismaTransaction {
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  $queryRawUnsafe(query: string, ...values: any[]): PromiseLike<any>;
  readonly $connect?: never;
}

export const prisma: Library = {
  executeOn(candidate) {
    if (!isTransaction(candidate)) return undefined;
    return async (text, values) => (await candidate.$queryRawUnsafe(text, ...values)) as Row[];
  },
  isPool: (candidate) => hasMethods(candidate, "$queryRawUnsafe", "$connect"),
};

function isTransaction(candidate: object): candidate is PrismaTransaction {
  return hasMethods(candidate, "$queryRawUnsafe");
}
