// Compiles and executes tests.

import { readdirSync, rmSync, writeFileSync } from "node:fs";

import { node, tsc } from "./run.mjs";

const TEST = ".test.js";

export function compile(project) {
  rmSync("build", { recursive: true, force: true });
  tsc(project);
  writeFileSync("build/package.json", '{"type": "module"}\n');
}

/** Returns the files of the compiled tests in a folder. `name` is that of `name.test.js`. */
export function testsIn(folder, isChosen = () => true) {
  const names = readdirSync(folder, { recursive: true })
    .filter((file) => file.endsWith(TEST))
    .map((file) => file.slice(0, -TEST.length));
  const files = names.filter(isChosen).map((name) => `${folder}/${name}${TEST}`);
  // Without files, Node.js would search tests.
  if (files.length === 0) throw new Error(`${folder} has no test with this name`);
  return files;
}

/** Returns a function that chooses these names, or all names if there are none. */
export function namesOf(chosen) {
  return (name) => chosen.length === 0 || chosen.includes(name);
}

/**
 * Executes tests on the server that PGHOST, PGPORT, PGUSER and PGDATABASE define. The database has
 * the extension, and the user is a superuser.
 */
export function execute(files, { concurrency = 2, timeoutMs = 60_000 } = {}) {
  executeWith({}, [`--test-timeout=${timeoutMs}`, `--test-concurrency=${concurrency}`], files);
}

/** Executes tests with a Node.js, which does not have all options if it is old. */
export function executeWith(options, parameters, files) {
  const all = ["--enable-source-maps", ...parameters, "--test", "--test-reporter=spec"];
  node([...all, ...files], options);
}
