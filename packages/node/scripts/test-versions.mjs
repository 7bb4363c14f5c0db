// Executes the tests with old versions of Node.js, which must be installed in tests/versions.

import { arch } from "node:process";

import { compile, executeWith, testsIn } from "./tests.mjs";

/** The versions, and the tests that cannot be executed with them. */
const VERSIONS = {
  // In Node.js 18, `Readable.toWeb` throws when its stream is destroyed (`once`). A lease of
  // postgres.js whose server is lost for good does not fail in time (`failures`), Express can close
  // a connection before its response (`handlers`), and a process can continue after its last test
  // (`lease`): the causes of these three are not known.
  18: ["http/failures", "http/handlers", "http/once", "lease"],
  20: [],
};
/** Node.js 18 has no limit for a test. */
const TIMEOUT_MS = 600_000;

compile("tsconfig.tests.json");
for (const [version, excluded] of Object.entries(VERSIONS)) {
  const program = `tests/versions/node_modules/node${version}-${arch}/bin/node`;
  const files = testsIn("build/tests", (name) => !excluded.includes(name));
  executeWith({ program, timeout: TIMEOUT_MS }, ["--test-concurrency=2"], files);
}
