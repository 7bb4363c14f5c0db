/**
 * Prepared statements of node-postgres. Their names depend on their text only, so no client has
 * another statement with the same name.
 *
 * A pooler can execute a transaction on a connection that does not have the statements of its
 * client. After the first such error no statement at the address of the pooler has a name.
 */

import { createHash } from "node:crypto";
import { emitWarning } from "node:process";

import { serverError } from "../driver-error.js";
import { IdemError } from "../errors.js";
import { hasMethods, member } from "./execute.js";

/** The statement does not exist, or exists already. */
const LOST: ReadonlySet<string | undefined> = new Set(["26000", "42P05"]);

/** The addresses at which statements are not prepared. */
const unprepared = new Set<string>();
/** The names of the statements, by their text. There are few texts: values are parameters. */
const names = new Map<string, string>();

/** Returns the name of a statement, which is shorter than the 63 bytes that the server stores. */
export function nameOf(text: string): string {
  let name = names.get(text);
  if (name === undefined) {
    name = `idem_${createHash("sha256").update(text).digest("hex").slice(0, 32)}`;
    names.set(text, name);
  }
  return name;
}

/** Returns whether statements of this object are prepared: a client with the protocol in it. */
export function canPrepare(client: object): boolean {
  const connection = member(client, "connection");
  return (
    typeof connection === "object" &&
    connection !== null &&
    hasMethods(connection, "parse", "bind", "execute", "sync") &&
    hasMethods(member(connection, "stream") ?? {}, "cork", "uncork") &&
    typeof member(connection, "parsedStatements") === "object" &&
    !unprepared.has(addressOf(client))
  );
}

/** Returns the error of a prepared statement. If it is lost, the next ones are not prepared. */
export function preparedError<E>(client: object, error: E): E | IdemError {
  const found = serverError(error);
  if (found === undefined || !LOST.has(found.sqlstate)) return error;
  const address = addressOf(client);
  if (!unprepared.has(address)) {
    emitWarning(
      `idem-pg: ${address} does not keep prepared statements, so from now on statements are not ` +
        "prepared there. PgBouncer 1.21 or later keeps them with the setting " +
        "max_prepared_statements",
    );
  }
  unprepared.add(address);
  const hint = "Execute the transaction again. Statements are not prepared from now on.";
  return new IdemError(found.message, { ...found, hint, retryable: true, cause: error });
}

/** Returns whether this is the error of a prepared statement that the server does not have. */
export function isLost(error: unknown): boolean {
  return LOST.has(serverError(error)?.sqlstate);
}

function addressOf(client: object): string {
  return `${String(member(client, "host"))}:${String(member(client, "port"))}`;
}
