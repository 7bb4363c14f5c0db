// Executes the tests of the recipes: test-recipes.mjs [name…]. The name of nats.test.js is nats.
// The packages must be installed in recipes. AMQP_URL, KAFKA_BROKERS and so on define the brokers.

import { existsSync, symlinkSync } from "node:fs";

import { node } from "./run.mjs";
import { compile, execute, namesOf, testsIn } from "./tests.mjs";

const recipes = "build/recipes";
// The recipes use the package as its users do.
node(["scripts/build.mjs"]);
if (!existsSync("recipes/node_modules/idem-pg")) {
  symlinkSync("../..", "recipes/node_modules/idem-pg");
}
compile("recipes/tsconfig.json");
// Node.js searches the packages above the compiled recipes.
symlinkSync("../../recipes/node_modules", `${recipes}/node_modules`);
execute(testsIn(`${recipes}/tests`, namesOf(process.argv.slice(2))), {
  // The tests share tables.
  concurrency: 1,
  // Of a file. Kafka waits some seconds for each consumer that joins or was killed.
  timeoutMs: 300_000,
});
node(["node_modules/eslint/bin/eslint.js", "recipes"]);
