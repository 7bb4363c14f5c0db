/** Prisma: the `tx` of an interactive transaction. */

import type { Row } from "../statements/statement.js";
import { hasMethods, type Library } from "./execute.js";

/** The `tx` that the callback of `prisma.$transaction` gets. `$connect` excludes `prisma`. */
export interface PrismaTransaction {
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  $queryRawUnsafe(query: string, ...values: any[]): PromiseLike<any>;
  readonly $connect?: never;
}

export const prisma: Library<PrismaTransaction> = {
  isTransaction: (candidate) => hasMethods(candidate, "$queryRawUnsafe"),
  isPool: (candidate) => hasMethods(candidate, "$queryRawUnsafe", "$connect"),
  execute: async (on, text, values) => (await on.$queryRawUnsafe(text, ...values)) as Row[],
};
