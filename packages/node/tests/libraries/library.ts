import type { Executor } from "../../src/index.js";

/** A library that executes a callback in a transaction. */
export interface Library {
  readonly name: string;
  /** The objects that are no transaction. */
  readonly pools: readonly object[];
  /** Executes a statement without idem on the object of a transaction. */
  execute(executor: Executor, text: string): Promise<unknown>;
  transaction<T>(work: (executor: Executor) => Promise<T>): Promise<T>;
  close(): Promise<void>;
}
