/** Transactions of postgres.js, whose statements must not leave them. */

import assert from "node:assert/strict";
import { EventEmitter, once } from "node:events";
import { test } from "node:test";

import postgres from "postgres";

import { transactions } from "../src/index.js";
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
  const lost = transactions(sql)(async (tx) => {
    for (const statement of ["SELECT pg_terminate_backend(pg_backend_pid())", "SELECT 1"]) {
      try {
        await tx.unsafe(statement);
      } catch (error) {
        errors.push(error);
      }
    }
  });
  await assert.rejects(lost, { name: "IdemError", retryable: true });
  assert.equal(errors.length, 2);
  // The TypeError of postgres.js would end this process.
  await new Promise((resolve) => setTimeout(resolve, 50));
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
