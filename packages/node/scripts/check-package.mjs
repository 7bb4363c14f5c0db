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
const all = [...readme.matchAll(/```ts\n(.*?)```/gs)].map(([, code]) => code);
const ofHttp = all.filter((code) => code.includes("idem-pg/http"));
const examples = all.filter((code) => !ofHttp.includes(code));
assert.deepEqual([examples.length, ofHttp.length], [3, 3]);

const folder = mkdtempSync(join(tmpdir(), "idem-pg-"));
try {
  npm(process.cwd(), "pack", "--silent", "--pack-destination", folder);
  const { version } = JSON.parse(readFileSync("package.json", "utf8"));
  const tarball = `idem-pg-${version}.tgz`;
  const content = execFileSync("tar", ["-tzf", join(folder, tarball)], { encoding: "utf8" });
  for (const name of content.trim().split("\n")) assert.match(name, FILES);

  writeFileSync(join(folder, "package.json"), '{"private": true, "type": "module"}\n');
  npm(folder, "install", "--silent", "--no-audit", "--offline", `./${tarball}`);
  for (const name of ["pg", "postgres", "express", "fastify", "hono", "@types"]) {
    symlinkSync(join(process.cwd(), "node_modules", name), join(folder, "node_modules", name));
  }
  compile();
  compileHttp();
  await execute();
  const required = `console.log(typeof require("idem-pg").idem);
console.log(typeof require("idem-pg/http").expressIdempotency);`;
  assert.equal(node("-e", required, "--input-type=commonjs").trim(), "function\nfunction");
  const imported = 'import("idem-pg/http").then((http) => console.log(typeof http.Scope.by))';
  assert.equal(node("-e", imported).trim(), "function");
  console.log("the package is complete");
} finally {
  rmSync(folder, { recursive: true });
}

/** The examples compile, in ES modules and in CommonJS, with the declarations of the package. */
function compile() {
  const declared = `import pg from "pg";
declare const pool: pg.Pool;
declare const delivery: {
  payload: Uint8Array;
  acknowledge(): Promise<void>;
  redeliver(): Promise<void>;
};
declare function book(key: string): Promise<string>;
declare function findParcel(key: string): Promise<{ found: string } | null>;
declare function sendRefund(order: string, key: string): Promise<string>;
declare function findRefund(key: string): Promise<{ found: string } | null>;
`;
  writeFileSync(join(folder, "first.ts"), examples[0]);
  writeFileSync(join(folder, "second.ts"), declared + examples[1]);
  writeFileSync(join(folder, "tools.ts"), declared + examples[2]);
  const required = `import { idem } from "idem-pg";
import { Scope } from "idem-pg/http";
void [idem, Scope];
`;
  writeFileSync(join(folder, "third.cts"), required);
  check(["first.ts", "second.ts", "tools.ts", "third.cts"]);
}

/** The examples of HTTP compile too. The declarations of the frameworks themselves may not. */
function compileHttp() {
  const files = ofHttp.map((code, n) => {
    writeFileSync(join(folder, `http${n}.ts`), code);
    return `http${n}.ts`;
  });
  check(files, { skipLibCheck: true });
}

function check(files, more = {}) {
  const options = {
    strict: true,
    noEmit: true,
    module: "NodeNext",
    target: "ES2022",
    lib: ["ES2022", "ESNext.Disposable"],
    types: ["node"],
    exactOptionalPropertyTypes: true,
    noUncheckedIndexedAccess: true,
    ...more,
  };
  const settings = { compilerOptions: options, files };
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
