// Compiles and executes tests.

import { rmSync, writeFileSync } from "node:fs";

import { node, tsc } from "./run.mjs";

export function compile(project) {
  rmSync("build", { recursive: true, force: true });
  tsc(project);
  writeFileSync("build/package.json", '{"type": "module"}\n');
}

/**
 * Executes tests on the server that PGHOST, PGPORT, PGUSER and PGDATABASE define. The database has
 * the extension, and the user is a superuser.
 */
export function execute(files) {
  const options = ["--enable-source-maps", "--test-concurrency=2", "--test-timeout=60000"];
  node([...options, "--test", "--test-reporter=spec", ...files]);
}
