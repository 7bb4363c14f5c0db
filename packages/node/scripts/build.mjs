// Compiles the package twice: ES modules to dist/esm, and CommonJS to dist/cjs.

import { rmSync, writeFileSync } from "node:fs";

import { tsc } from "./run.mjs";

rmSync("dist", { recursive: true, force: true });
compile("tsconfig.json", "dist/esm", "module");
compile("tsconfig.cjs.json", "dist/cjs", "commonjs");

/** Node.js reads the type of the modules from the package.json next to them. */
function compile(project, folder, type) {
  tsc(project);
  writeFileSync(`${folder}/package.json`, `${JSON.stringify({ type })}\n`);
}
