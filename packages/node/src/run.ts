import { idemError, type IdemError } from "./errors.js";
import type { Execute } from "./executors/execute.js";
import type { Statement } from "./statements/statement.js";

/** Executes statements on one connection. */
export type Run = <T>(statement: Statement<T>, errorOf?: ErrorOf) => Promise<T>;

type ErrorOf = (error: unknown) => IdemError;

/** Returns the function that executes statements. An error of the driver becomes an `IdemError`. */
export function runOn(execute: Execute): Run {
  return async (statement, errorOf = idemError) => {
    let rows;
    try {
      rows = await execute(statement.text, statement.values);
    } catch (error) {
      throw errorOf(error);
    }
    return statement.decode(rows);
  };
}
