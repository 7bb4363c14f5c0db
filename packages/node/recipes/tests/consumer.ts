/** Processes of consumers. */

import { spawn, type ChildProcess } from "node:child_process";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { execPath } from "node:process";

import type { Database } from "./database.js";
import { fileOf, variantOf } from "./program.js";
import { until } from "./until.js";

/** A process that is killed with SIGKILL, and gets no other signal. */
export class Consumer {
  /** The name of its sessions. */
  readonly session: string;
  readonly #child: ChildProcess;
  readonly #exit: Promise<unknown[]>;
  readonly #database: Database;

  constructor(database: Database, program: string, environment: Record<string, string>) {
    this.#database = database;
    this.session = `consumer-${randomUUID()}`;
    const pause = new URL("pause.js", import.meta.url).href;
    // `setpriv` ends the process also if the test is killed.
    const command = ["--pdeathsig", "KILL", execPath, "--import", pause, program];
    this.#child = spawn("setpriv", command, {
      env: { ...process.env, PGAPPNAME: this.session, ...environment },
      stdio: ["ignore", "ignore", "inherit"],
    });
    this.#exit = once(this.#child, "exit");
  }

  /** Waits until the process waits in a statement. Fails if the process ends. */
  async untilWaiting(statement: string): Promise<void> {
    const ended = this.#exit.then(([code]) => {
      throw new Error(`the consumer ended: ${String(code)}`);
    });
    await Promise.race([this.#database.untilWaiting(this.session, statement), ended]);
  }

  /** Waits until the process ends, and returns its exit code. */
  async end(): Promise<number | null> {
    await until("the consumer ends", () => Promise.resolve(this.#child.exitCode !== null));
    return this.#child.exitCode;
  }

  async kill(): Promise<void> {
    this.#child.kill("SIGKILL");
    await this.#exit;
    await this.#database.endSessions(this.session);
  }
}

/** How the tests start a recipe. */
export interface Recipe {
  /** The compiled program beside this folder, without its extension. */
  readonly name: string;
  readonly environment: Record<string, string>;
  /** Whether the process ends after a failed payment. Otherwise it repeats the payment. */
  readonly endsAfterFailure: boolean;
}

/** Executes `work` while the consumer runs, which is killed at the end. */
export async function running<T>(
  database: Database,
  recipe: Recipe,
  work: (consumer: Consumer) => Promise<T>,
): Promise<T> {
  const consumer = new Consumer(database, fileOf(recipe.name), recipe.environment);
  try {
    return await work(consumer);
  } finally {
    await consumer.kill();
  }
}

/** Returns a broken variant of a recipe: it acknowledges a message before its transaction ends. */
export function acknowledgingEarly(recipe: Recipe): Recipe {
  return { ...recipe, name: variantOf(recipe.name, "early", "await handle(", "void handle(") };
}
