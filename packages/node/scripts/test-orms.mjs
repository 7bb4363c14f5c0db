// Executes the tests of the large libraries, whose packages must be installed in tests/orms.

import { symlinkSync } from "node:fs";
import { execPath } from "node:process";

import { node } from "./run.mjs";
import { compile, execute } from "./tests.mjs";

const orms = "tests/orms";
node(["node_modules/prisma/build/index.js", "generate", "--schema=schema.prisma"], {
  cwd: orms,
  stdio: ["ignore", "ignore", "inherit"],
  // Prisma would download an engine, which it does not use to generate.
  env: { ...process.env, PRISMA_SCHEMA_ENGINE_BINARY: execPath, CHECKPOINT_DISABLE: "1" },
});
compile(`${orms}/tsconfig.json`);
// Node.js searches the packages above the compiled tests.
symlinkSync(`../../../${orms}/node_modules`, `build/${orms}/node_modules`);
execute([`build/${orms}/orms.test.js`]);
node(["node_modules/eslint/bin/eslint.js", orms]);
