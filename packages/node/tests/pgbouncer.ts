/** PgBouncer in transaction mode with two connections to the server, for one test. */

import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { chmod, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestContext } from "node:test";

import type { Settings } from "./pools.js";

const PORT = 6432;

/** Starts PgBouncer. Returns the settings of a pool whose connections go through it. */
export async function startPgBouncer(t: TestContext): Promise<Settings> {
  const host = await mkdtemp(join(tmpdir(), "pgbouncer-"));
  await chmod(host, 0o777);
  const { PGHOST = "localhost", PGPORT = "5432", PGUSER = "postgres" } = process.env;
  const settings = [
    "[databases]",
    `* = host=${PGHOST} port=${PGPORT} user=${PGUSER}`,
    "[pgbouncer]",
    "listen_addr =",
    `listen_port = ${String(PORT)}`,
    `unix_socket_dir = ${host}`,
    "auth_type = any",
    `auth_file = ${host}/users`,
    "pool_mode = transaction",
    "default_pool_size = 2",
  ];
  await writeFile(`${host}/users`, "");
  await writeFile(`${host}/pgbouncer.ini`, settings.join("\n"));
  const command = ["/usr/sbin/pgbouncer", "--quiet", `${host}/pgbouncer.ini`];
  // Like PostgreSQL, PgBouncer does not run as root.
  const asUser = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"];
  const isRoot = process.getuid?.() === 0;
  const [program = "", ...parameters] = isRoot ? [...asUser, ...command] : command;
  const child = spawn(program, parameters, { stdio: ["ignore", "ignore", "inherit"] });
  const ended = once(child, "exit");
  t.after(async () => {
    child.kill("SIGTERM");
    await ended;
    await rm(host, { recursive: true });
  });
  while (!existsSync(`${host}/.s.PGSQL.${String(PORT)}`)) {
    if (child.exitCode !== null) throw new Error("PgBouncer has ended");
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  return { host, port: PORT };
}
