/**
 * The types of executors. `tsc` compiles this file, and nothing executes it: a line after
 * `@ts-expect-error` that compiles is an error.
 */

import type { DataSource, EntityManager } from "typeorm";

import { idem } from "../../src/index.js";
import type { Prisma, PrismaClient } from "./generated/client.js";

export interface Objects {
  prismaTx: Prisma.TransactionClient;
  manager: EntityManager;
  prisma: PrismaClient;
  source: DataSource;
}

export function transactionsAreExecutors(o: Objects): void {
  idem(o.prismaTx);
  idem(o.manager);
}

export function poolsAreNoExecutors(o: Objects): void {
  // @ts-expect-error A PrismaClient.
  idem(o.prisma);
  // @ts-expect-error A DataSource of TypeORM.
  idem(o.source);
}
