// Starts programs.

import { spawnSync } from "node:child_process";
import { execPath, exit } from "node:process";

/** Executes Node.js, and exits if it fails. `program` is another Node.js. */
export function node(parameters, { program = execPath, ...options } = {}) {
  const { status } = spawnSync(program, parameters, { stdio: "inherit", ...options });
  if (status !== 0) exit(status ?? 1);
}

export function tsc(project) {
  node(["node_modules/typescript/bin/tsc", "-p", project]);
}
