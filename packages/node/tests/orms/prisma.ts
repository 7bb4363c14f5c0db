import { PrismaPg } from "@prisma/adapter-pg";

import { PrismaClient, type Prisma } from "./generated/client.js";
import type { Library } from "../libraries/library.js";

export function connect(): Promise<Library> {
  const db = new PrismaClient({ adapter: new PrismaPg({ max: 2 }) });
  return Promise.resolve({
    name: "Prisma",
    pools: [db, db.$extends({})],
    execute: async (executor, text) =>
      (executor as Prisma.TransactionClient).$executeRawUnsafe(text),
    transaction: (work) => db.$transaction((tx) => work(tx), { timeout: 60_000 }),
    close: () => db.$disconnect(),
  });
}
