// Executes the tests with old versions of Node.js, which must be installed in tests/versions.

import { arch } from "node:process";

import { compile, executeWith, testsIn } from "./tests.mjs";

const VERSIONS = [18, 20];
/** Node.js 18 has no limit for a test. */
const TIMEOUT_MS = 600_000;

compile("tsconfig.tests.json");
for (const version of VERSIONS) {
  const program = `tests/versions/node_modules/node${version}-${arch}/bin/node`;
  const files = testsIn("build/tests");
  executeWith({ program, timeout: TIMEOUT_MS }, ["--test-concurrency=2"], files);
}
