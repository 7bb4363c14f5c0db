/** Transactions of postgres.js, whose statements must not leave them. */

import assert from "node:assert/strict";
import { EventEmitter, once } from "node:events";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import postgres from "postgres";

import { IdemError, transactions } from "../src/index.js";
import { query } from "./server.js";

await query("CREATE TABLE IF NOT EXISTS late_statements (statement text)");

type Send = (tx: postgres.TransactionSql, statement: string) => PromiseLike<unknown>;

const INSERT = "INSERT INTO late_statements VALUES ($1)";
const unsafe: Send = (tx, statement) => tx.unsafe(INSERT, [statement]);
const tagged: Send = (tx, statement) => tx`INSERT INTO late_statements VALUES (${statement})`;
const inSavepoint: Send = (tx, statement) => tx.savepoint((inner) => unsafe(inner, statement));

for (const [name, send] of Object.entries({ unsafe, tagged, inSavepoint })) {
  test(`late statement of a lost connection is not executed: ${name}`, async (t) => {
    const sql = postgres({ max: 1, onnotice: () => undefined });
    t.after(() => sql.end({ timeout: 1 }));
    const now = new EventEmitter();
    const errors = new EventEmitter();
    const late = async (tx: postgres.TransactionSql, statement: string) => {
      await once(now, "send");
      await Promise.resolve()
        .then(() => send(tx, statement))
        .catch((error: unknown) => errors.emit(statement, error));
    };
    const [outer, inner] = [`${name}-outer`, `${name}-inner`];
    const lost = transactions(sql)(async (tx) => {
      const [row] = await tx<{ pid: number }[]>`SELECT pg_backend_pid() AS pid`;
      const open = [late(tx, outer), tx.savepoint((savepoint) => late(savepoint, inner))];
      await query("SELECT pg_terminate_backend($1, 20000)", [row?.pid]);
      await Promise.all(open);
    });
    await assert.rejects(lost, { name: "IdemError", retryable: true });
    const failed = [once(errors, outer), once(errors, inner)];
    await transactions(sql)(async (tx) => {
      // The connection that replaces the lost one is in a transaction.
      now.emit("send");
      await Promise.all(failed);
      await tx`SELECT 1`;
    });
    assert.deepEqual(await query("SELECT FROM late_statements WHERE statement = $1", [outer]), []);
    assert.deepEqual(await query("SELECT FROM late_statements WHERE statement = $1", [inner]), []);
  });
}

test("statement after the error of a lost connection is not executed", async (t) => {
  const sql = postgres({ max: 1, onnotice: () => undefined });
  t.after(() => sql.end({ timeout: 1 }));
  const errors: unknown[] = [];
  const now = new EventEmitter();
  const end = once(now, "end");
  const lost = transactions(sql)(async (tx) => {
    for (const statement of ["SELECT pg_terminate_backend(pg_backend_pid())", "SELECT 1"]) {
      try {
        await tx.unsafe(statement);
      } catch (error) {
        errors.push(error);
      }
    }
    now.emit("end");
  });
  await assert.rejects(lost, { name: "IdemError", retryable: true });
  await end;
  assert.equal(errors.length, 2);
  // The TypeError of postgres.js would end this process before there is another connection.
  // Its first transaction can fail with the error that has closed the lost one.
  await transactions(sql)((tx) => tx`SELECT 1`).catch((error: unknown) => {
    assert.ok(error instanceof IdemError && error.retryable, String(error));
  });
});

test("statements of a transaction work", async (t) => {
  const sql = postgres({ max: 1, onnotice: () => undefined });
  t.after(() => sql.end({ timeout: 1 }));
  const failed = transactions(sql)(async (tx) => {
    const part = tx`n + ${1}`;
    assert.deepEqual([...(await tx`SELECT ${part} AS n FROM (VALUES (1)) v (n)`)], [{ n: 2 }]);
    assert.deepEqual([...(await tx`SELECT 1 AS n`.values())], [[1]]);
    assert.deepEqual([...(await tx`SELECT ${tx.json({ a: 1 })}::jsonb AS j`)], [{ j: { a: 1 } }]);
    for await (const [row] of tx`SELECT 3 AS n`.cursor()) assert.deepEqual(row, { n: 3 });
    await assert.rejects(
      tx.savepoint((inner) => inner`SELECT 1/0`),
      { code: "22012" },
    );
    assert.equal(await tx.savepoint(async (inner) => (await inner`SELECT 1`).count), 1);
    await tx`SELECT 1/0`.catch(() => undefined);
    return "rolled back";
  });
  await assert.rejects(failed, { name: "IdemError", sqlstate: "22012" });
});

test("statement after the end of a transaction is not executed", async (t) => {
  const sql = postgres({ max: 1, onnotice: () => undefined });
  t.after(() => sql.end({ timeout: 1 }));
  const ended = await transactions(sql)(async (tx) => {
    await tx`SELECT 1`;
    return [tx];
  });
  assert.throws(() => ended[0]?.unsafe(INSERT, ["ended"]), /has ended/);
  assert.deepEqual(await query("SELECT FROM late_statements WHERE statement = 'ended'"), []);
});

const rowsOf = (statement: string) =>
  query("SELECT FROM late_statements WHERE statement = $1", [statement]);

test("statement that was built before the end is not executed after it", async (t) => {
  const sql = postgres({ max: 1, onnotice: () => undefined });
  t.after(() => sql.end({ timeout: 1 }));
  const file = fileURLToPath(import.meta.url);
  const built = await transactions(sql)(async (tx) => {
    await tx`SELECT 1`;
    const one = () => tx`INSERT INTO late_statements VALUES ('built') RETURNING 1`;
    return { awaited: one(), executed: one(), each: one(), file: tx.file(file), cursor: one() };
  });
  const ended = { name: "IdemError", message: /^the transaction has ended/ };
  await assert.rejects(built.awaited, ended);
  await assert.rejects(built.executed.execute(), ended);
  await assert.rejects(built.each.forEach(() => undefined), ended);
  await assert.rejects(built.file, ended);
  await assert.rejects(async () => {
    for await (const rows of built.cursor.cursor()) assert.equal(rows.length, 0);
  }, ended);
  assert.deepEqual(await rowsOf("built"), []);
});

test("statement that was built before a loss is not executed after it", async (t) => {
  const sql = postgres({ max: 1, onnotice: () => undefined });
  t.after(() => sql.end({ timeout: 1 }));
  const now = new EventEmitter();
  const lost = transactions(sql)(async (tx) => {
    const [row] = await tx<{ pid: number }[]>`SELECT pg_backend_pid() AS pid`;
    const built = tx`INSERT INTO late_statements VALUES ('built, lost')`;
    const send = once(now, "send");
    await query("SELECT pg_terminate_backend($1, 20000)", [row?.pid]);
    await send;
    await built.catch((error: unknown) => now.emit("failed", error));
  });
  await assert.rejects(lost, { name: "IdemError", retryable: true });
  await transactions(sql)(async (tx) => {
    const failed = once(now, "failed");
    await tx`SELECT 1`;
    now.emit("send");
    await failed;
  });
  assert.deepEqual(await rowsOf("built, lost"), []);
});

test("handler continues after a loss in a savepoint", async (t) => {
  const sql = postgres({ max: 1, onnotice: () => undefined });
  t.after(() => sql.end({ timeout: 1 }));
  const events = new EventEmitter();
  const end = once(events, "end");
  const lost = transactions(sql)(async (tx) => {
    try {
      await tx.savepoint((inner) => inner`SELECT pg_terminate_backend(pg_backend_pid())`);
    } finally {
      events.emit("end");
    }
  });
  await assert.rejects(lost, { name: "IdemError", retryable: true });
  await end;
});

test("statements of an array in a savepoint are executed", async (t) => {
  const sql = postgres({ max: 1, onnotice: () => undefined });
  t.after(() => sql.end({ timeout: 1 }));
  await transactions(sql)((tx) =>
    tx.savepoint((inner) => ["1", "2"].map((n) => inner.unsafe(INSERT, [`array ${n}`]))),
  );
  assert.equal((await rowsOf("array 1")).length, 1);
  assert.equal((await rowsOf("array 2")).length, 1);
  await query("DELETE FROM late_statements WHERE statement LIKE 'array %'");
});

const refused = () => Object.assign(new Error("no server"), { code: "ECONNREFUSED" });
const refuse = () => {
  throw refused();
};
const errorsOfNoLoss: Readonly<Record<string, (tx: postgres.TransactionSql) => Promise<unknown>>> =
  {
    "a missing file": (tx) => tx.file("missing.sql").execute(),
    "a cursor": (tx) => tx`SELECT generate_series(1, 3)`.cursor(1, refuse),
    forEach: (tx) => tx`SELECT 1`.forEach(refuse),
    "a savepoint": (tx) => tx.savepoint(() => Promise.reject(refused())),
  };

for (const [name, work] of Object.entries(errorsOfNoLoss)) {
  test(`error of ${name} that is no loss rolls back`, async (t) => {
    const sql = postgres({ max: 1, onnotice: () => undefined });
    t.after(() => sql.end({ timeout: 1 }));
    const failed = transactions(sql)(async (tx) => {
      await tx.unsafe(INSERT, [name]);
      await work(tx);
    });
    await assert.rejects(failed, { code: name === "a missing file" ? "ENOENT" : "ECONNREFUSED" });
    assert.deepEqual(await rowsOf(name), []);
    assert.deepEqual([...(await transactions(sql)((tx) => tx`SELECT 1 AS n`))], [{ n: 1 }]);
  });
}

test("transaction continues after an error that is no loss", async (t) => {
  const sql = postgres({ max: 1, onnotice: () => undefined });
  t.after(() => sql.end({ timeout: 1 }));
  await transactions(sql)(async (tx) => {
    await tx.savepoint(() => Promise.reject(refused())).catch(() => undefined);
    await tx.unsafe(INSERT, ["continued"]);
  });
  assert.equal((await rowsOf("continued")).length, 1);
  await query("DELETE FROM late_statements WHERE statement = 'continued'");
});
