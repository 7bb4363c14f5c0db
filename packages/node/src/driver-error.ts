/** Finds the error of the server inside the error of a driver or ORM. */

/** What the server reported. */
export interface ServerError {
  readonly message: string;
  readonly sqlstate: string;
  readonly hint: string | undefined;
  /** `ERROR` ends the transaction, `FATAL` and `PANIC` end the connection. Absent with Prisma. */
  readonly severity: string | undefined;
}

/** Where the error of the driver is: `cause` in Drizzle and Prisma, `driverError` in TypeORM. */
const INNER = ["cause", "driverError", "originalError", "driverAdapterError", "meta"] as const;

/** An error of a driver is at most this deep. The limit also ends a cycle of causes. */
const MAX_DEPTH = 8;

/** Returns the error of the server, or undefined if the server did not report one. */
export function serverError(error: unknown, depth = 0): ServerError | undefined {
  if (!isObject(error) || depth > MAX_DEPTH) return undefined;
  const found = fromPrisma(error) ?? fromDriver(error);
  if (found !== undefined) return found;
  for (const name of INNER) {
    const inner = serverError(error[name], depth + 1);
    if (inner !== undefined) return inner;
  }
  return undefined;
}

/** pg and postgres.js. An error of Node.js has a `code` too, for example EPIPE, but no severity. */
function fromDriver(error: Record<string, unknown>): ServerError | undefined {
  const { code, severity } = error;
  if (!isSqlstate(code) || typeof severity !== "string") return undefined;
  return {
    message: text(error["message"]) ?? "",
    sqlstate: code,
    hint: text(error["hint"]),
    severity,
  };
}

/** The error of an adapter of Prisma. */
function fromPrisma(error: Record<string, unknown>): ServerError | undefined {
  const { originalCode } = error;
  if (!isSqlstate(originalCode)) return undefined;
  return {
    message: text(error["originalMessage"]) ?? "",
    sqlstate: originalCode,
    hint: text(error["hint"]),
    severity: text(error["severity"]),
  };
}

function isSqlstate(value: unknown): value is string {
  return typeof value === "string" && /^[0-9A-Z]{5}$/.test(value);
}

function text(value: unknown): string | undefined {
  return typeof value === "string" ? value : undefined;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null;
}
