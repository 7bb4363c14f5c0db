import type { IdemError } from "../errors.js";
import type { Parameter, Row, Statement } from "../statements/statement.js";

/** Executes statements on one connection. */
export type Run = <T>(statement: Statement<T>, errorOf?: ErrorOf) => Promise<T>;

type ErrorOf = (error: unknown) => IdemError;

/** How the object of a library executes statements. `T` is the type of its transactions. */
export interface Library<T> {
  readonly isTransaction: (candidate: object) => boolean;
  /** Returns whether the object is a pool of this library, or works on one. */
  readonly isPool: (candidate: object) => boolean;
  /** Executes a statement with the parameters $1, $2… in the transaction of the user. */
  readonly execute: (on: T, text: string, values: Parameter[]) => Promise<readonly Row[]>;
}

/** Returns whether the object has a method with each of these names. */
export function hasMethods(candidate: object, ...names: readonly string[]): boolean {
  return names.every((name) => typeof (candidate as Record<string, unknown>)[name] === "function");
}

/** Returns the member of an object of a type that is not known. */
export function member(candidate: object, name: string): unknown {
  return (candidate as Record<string, unknown>)[name];
}
