// Executes the tests: test.mjs [name…]. The name of build/tests/lease.test.js is lease, and that of
// build/tests/http/once.test.js is http/once.

import { compile, execute, namesOf, testsIn } from "./tests.mjs";

compile("tsconfig.tests.json");
execute(testsIn("build/tests", namesOf(process.argv.slice(2))));
