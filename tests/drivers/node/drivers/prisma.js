// Prisma over its adapter for node-postgres, with statements as text in interactive transactions.

import { PrismaPg } from "@prisma/adapter-pg";
import { ColumnTypeEnum } from "@prisma/driver-adapter-utils";

import { PrismaClient } from "../generated/client.ts";
import { Json, Refusal } from "../protocol.js";
import { session } from "../transaction.js";
import { parameter } from "../values.js";

export async function connect() {
  const adapter = new Adapter({ max: 1 });
  const db = new PrismaClient({ adapter });
  const functions = await db.$queryRaw`
    SELECT DISTINCT proname::text FROM pg_proc WHERE prorettype = 'void'::regtype`;
  const withoutResult = new Set(functions.map(({ proname }) => proname));
  return session({
    pool: db,
    // Prisma ends a transaction after 5 seconds by default.
    transaction: (callback) => db.$transaction(callback, { timeout: 60_000 }),
    async execute(handle, text, values) {
      const parameters = values.map(parameter);
      // $queryRaw executes a function that returns void, and then fails.
      if (withoutResult.has(text.match(/^SELECT (\w+)\(/)?.[1])) {
        await handle.$executeRawUnsafe(text, ...parameters);
        return [];
      }
      const rows = await handle.$queryRawUnsafe(text, ...parameters);
      return rows.map((row) => Object.values(row).map((cell, n) => value(cell, adapter.types[n])));
    },
    refusal,
    close: () => db.$disconnect(),
  });
}

/** Keeps the types of the columns of the last result, because Prisma does not return them. */
class Adapter extends PrismaPg {
  types = [];

  async connect() {
    const connection = this.#keep(await super.connect());
    const start = connection.startTransaction.bind(connection);
    connection.startTransaction = async (level) => this.#keep(await start(level));
    return connection;
  }

  #keep(connection) {
    const query = connection.queryRaw.bind(connection);
    connection.queryRaw = async (statement) => {
      const result = await query(statement);
      this.types = result.columnTypes;
      return result;
    };
    return connection;
  }
}

function value(cell, type) {
  if (cell === null) return null;
  if (type === ColumnTypeEnum.Json) return new Json(cell);
  if (typeof cell === "bigint") return Number(cell);
  return cell instanceof Uint8Array ? Buffer.from(cell) : cell;
}

/** Returns the `Refusal` for an error of the server, and another error unchanged. */
function refusal(error) {
  // A COMMIT that fails throws the error of the adapter.
  const { cause } = error.meta?.driverAdapterError ?? error;
  if (cause?.originalCode === undefined) return error;
  return new Refusal(cause.originalCode, cause.hint, cause.originalMessage);
}
