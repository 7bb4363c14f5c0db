import type { Parameter, Row } from "../statements/statement.js";

/** Executes a statement with the parameters $1, $2… in the transaction of the user. */
export type Execute = (text: string, values: readonly Parameter[]) => Promise<readonly Row[]>;

/** How the object of a library executes statements. */
export interface Library {
  /** Returns how to execute, or undefined for an object of another library. Gets no pool. */
  readonly executeOn: (candidate: object) => Execute | undefined;
  /** Returns whether the object is a pool of this library, or works on one. */
  readonly isPool: (candidate: object) => boolean;
}

/** Returns whether the object has a method with each of these names. */
export function hasMethods(candidate: object, ...names: readonly string[]): boolean {
  return names.every((name) => typeof (candidate as Record<string, unknown>)[name] === "function");
}

/** Returns the member of an object of a type that is not known. */
export function member(candidate: object, name: string): unknown {
  return (candidate as Record<string, unknown>)[name];
}
