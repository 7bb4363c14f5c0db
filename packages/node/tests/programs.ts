/** Programs that the tests kill. */

import { spawn } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";

/** A program of tests/programs that runs until it is killed. */
export interface Program {
  /** The line that the program wrote when it reached the state in which it waits. */
  readonly line: string;
  /** Kills the program with SIGKILL, and waits for its end. */
  kill(): Promise<void>;
}

/** Starts a program, and waits for its first line. */
export async function start(name: string, ...parameters: string[]): Promise<Program> {
  const file = fileURLToPath(new URL(`programs/${name}.js`, import.meta.url));
  const child = spawn(process.execPath, [file, ...parameters], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  const ended = once(child, "exit");
  const [line] = (await Promise.race([once(child.stdout, "data"), ended])) as [unknown];
  if (!Buffer.isBuffer(line)) throw new Error(`the program ${name} ended: ${String(line)}`);
  return {
    line: line.toString().trim(),
    async kill() {
      child.kill("SIGKILL");
      await ended;
    },
  };
}
