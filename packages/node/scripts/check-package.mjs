// Checks the package as its users get it: packs it, installs it in an empty folder, executes the
// first example of the README twice, compiles all its examples, and requires it from CommonJS.
// PGHOST, PGPORT, PGUSER and PGDATABASE define a database with the extension.

import { execFileSync } from "node:child_process";
import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { execPath } from "node:process";

import pg from "pg";

const FILES = /^package\/(package\.json|README\.md|LICENSE-(MIT|APACHE)|dist\/(esm|cjs)\/.+)$/;
const tsc = join(process.cwd(), "node_modules/typescript/bin/tsc");
const readme = readFileSync("README.md", "utf8");
const examples = [...readme.matchAll(/```ts\n(.*?)```/gs)].map(([, code]) => code);
assert.equal(examples.length, 2);

const folder = mkdtempSync(join(tmpdir(), "idem-pg-"));
try {
  npm(process.cwd(), "pack", "--silent", "--pack-destination", folder);
  const { version } = JSON.parse(readFileSync("package.json", "utf8"));
  const tarball = `idem-pg-${version}.tgz`;
  const content = execFileSync("tar", ["-tzf", join(folder, tarball)], { encoding: "utf8" });
  for (const name of content.trim().split("\n")) assert.match(name, FILES);

  writeFileSync(join(folder, "package.json"), '{"private": true, "type": "module"}\n');
  npm(folder, "install", "--silent", "--no-audit", "--offline", `./${tarball}`);
  for (const name of ["pg", "@types"]) {
    symlinkSync(join(process.cwd(), "node_modules", name), join(folder, "node_modules", name));
  }
  compile();
  await execute();
  const required = 'console.log(typeof require("idem-pg").idem)';
  assert.equal(node("-e", required, "--input-type=commonjs").trim(), "function");
  console.log("the package is complete");
} finally {
  rmSync(folder, { recursive: true });
}

/** The examples compile, in ES modules and in CommonJS, with the declarations of the package. */
function compile() {
  const declared = `import pg from "pg";
declare const pool: pg.Pool;
declare function book(key: string): Promise<string>;
declare function findParcel(key: string): Promise<{ found: string } | null>;
`;
  writeFileSync(join(folder, "first.ts"), examples[0]);
  writeFileSync(join(folder, "second.ts"), declared + examples[1]);
  writeFileSync(join(folder, "third.cts"), 'import { idem } from "idem-pg";\nvoid idem;\n');
  const options = {
    strict: true,
    noEmit: true,
    module: "NodeNext",
    target: "ES2022",
    lib: ["ES2022", "ESNext.Disposable"],
    types: ["node"],
    exactOptionalPropertyTypes: true,
    noUncheckedIndexedAccess: true,
  };
  const settings = { compilerOptions: options, files: ["first.ts", "second.ts", "third.cts"] };
  writeFileSync(join(folder, "tsconfig.json"), JSON.stringify(settings));
  execFileSync(execPath, [tsc, "-p", folder], { stdio: "inherit" });
}

/** The first example processes its message once. */
async function execute() {
  const client = new pg.Client();
  await client.connect();
  await client.query("SELECT idem_forget('payment-4711', 'billing.charge')");
  await client.query("CREATE TABLE account (id int, paid int)");
  await client.query("INSERT INTO account VALUES (7, 0)");
  writeFileSync(join(folder, "first.mjs"), `${examples[0]}\nawait pool.end();\n`);
  node("first.mjs");
  node("first.mjs");
  const { rows } = await client.query("SELECT paid FROM account");
  await client.query("DROP TABLE account");
  await client.end();
  assert.deepEqual(rows, [{ paid: 100 }]);
}

function node(...parameters) {
  return execFileSync(execPath, parameters, { cwd: folder, encoding: "utf8" });
}

function npm(cwd, ...parameters) {
  execFileSync("npm", parameters, { cwd, stdio: ["ignore", "ignore", "inherit"] });
}
