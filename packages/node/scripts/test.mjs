// Executes the tests: test.mjs [name…]. The name of build/tests/lease.test.js is lease.

import { readdirSync } from "node:fs";

import { compile, execute } from "./tests.mjs";

compile("tsconfig.tests.json");
const chosen = process.argv.slice(2).map((name) => `${name}.test.js`);
const all = readdirSync("build/tests").filter((name) => name.endsWith(".test.js"));
const files = chosen.length > 0 ? chosen : all;
execute(files.map((name) => `build/tests/${name}`));
