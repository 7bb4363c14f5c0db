/**
 * The types of tools. `tsc` compiles this file, and nothing executes it: a line after
 * `@ts-expect-error` that compiles is an error.
 */

import type pg from "pg";
import type postgres from "postgres";

import { once } from "../../src/index.js";

interface Context {
  readonly toolCallId: string;
}

export async function infersArgumentsContextAndResult(pool: pg.Pool): Promise<void> {
  const add = once(
    pool,
    "tools.add",
    async ({ a, b }: { a: number; b: number }, _context: Context, { idempotencyKey }) => ({
      sum: a + b,
      key: idempotencyKey,
    }),
    { scope: () => null, id: (_, { toolCallId }) => toolCallId, onUnknown: "repeat" },
  );
  const result: { sum: number; key: string } = await add({ a: 1, b: 2 }, { toolCallId: "1" });
  result.sum;
  // @ts-expect-error An argument of another type.
  await add({ a: 1, b: "2" }, { toolCallId: "1" });
  // @ts-expect-error The tool has a context.
  await add({ a: 1, b: 2 });
  // @ts-expect-error A context of another type.
  await add({ a: 1, b: 2 }, {});
  // @ts-expect-error The result has no such member.
  result.difference;
}

export async function resultIsThatOfJson(pool: pg.Pool): Promise<void> {
  const options = { scope: () => null, id: () => "1", onUnknown: "repeat" } as const;
  interface Receipt {
    at: Date;
    cents: number;
    note?: string;
    lines: readonly [string, Date | null][];
    of: undefined | { any: unknown };
  }
  const receipt = await once(pool, "t", async () => ({}) as Receipt, options)({});
  const at: string = receipt.at;
  const lines: readonly [string, string | null][] = receipt.lines;
  const note: string | undefined = receipt.note;
  const any: unknown = receipt.of?.any;
  console.log(at, lines, note, any, receipt.cents.toFixed());
  // @ts-expect-error A Date is a string in JSON.
  receipt.at.getTime();
  const nothing: null = await once(pool, "t", async () => undefined, options)({});
  // A bigint has no JSON.
  const none: never = await once(pool, "t", async () => 1n, options)({});
  console.log(nothing, none);
}

export async function contextCanBeLeftOut(sql: postgres.Sql): Promise<void> {
  const tool = once(sql, "tools.t", async ({ callId }: { callId: string }) => callId.length, {
    scope: ({ callId }) => callId,
    id: ({ callId }) => callId,
    onUnknown: async ({ idempotencyKey }) => ({ found: idempotencyKey.length }),
  });
  const length: number = await tool({ callId: "1" });
  length.toFixed();
  await tool({ callId: "1" }, { of: "a framework" });
}

export function rejectsOtherTypes(pool: pg.Pool, client: pg.PoolClient): void {
  const tool = async () => 1;
  const id = () => "1";
  const scope = () => "conversation";
  // @ts-expect-error The scope of the id is needed.
  once(pool, "t", tool, { id, onUnknown: "repeat" });
  // @ts-expect-error The id of a call is needed.
  once(pool, "t", tool, { scope, onUnknown: "repeat" });
  // @ts-expect-error What happens after an unknown result is a decision of the user.
  once(pool, "t", tool, { scope, id });
  // @ts-expect-error The found result has another type.
  once(pool, "t", tool, { scope, id, onUnknown: async () => ({ found: "1" }) });
  // @ts-expect-error Not a pool.
  once(client, "t", tool, { scope, id, onUnknown: "repeat" });
}
