/** The functions in the transactions of a library. */

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { describe, test } from "node:test";

import { idem, IdemError, type Executor, type RejectedLetter } from "../../src/index.js";
import { isClaimed, query } from "../server.js";
import type { Library } from "./library.js";

class RollBack extends Error {}

export async function testLibrary(connect: () => Promise<Library>): Promise<void> {
  const library = await connect();
  // Each run has destinations of its own.
  const destination = `libraries-${library.name}-${randomUUID()}`;

  describe(library.name, { concurrency: false }, () => {
    test("first claim wins and the second is a duplicate", async () => {
      const before = Date.now();
      const first = await library.transaction((tx) => idem(tx).claim("m-1", destination));
      assert.deepEqual(first, { outcome: "claimed", settlement: "acknowledge" });
      assert.equal(await isClaimed("m-1", destination), true);
      const second = await library.transaction((tx) => idem(tx).claim("m-1", destination));
      assert.equal(second.outcome, "duplicate");
      assert.ok(second.handledAt instanceof Date);
      assert.ok(Math.abs(second.handledAt.getTime() - before) < 60_000, String(second.handledAt));
      assert.equal(await library.transaction((tx) => idem(tx).tryClaim("m-1", destination)), false);
    });

    test("claim rolls back with its transaction", async () => {
      const rolledBack = library.transaction(async (tx) => {
        assert.equal(await idem(tx).tryClaim("m-2", destination), true);
        assert.equal(await idem(tx).isClaimed("m-2", destination), true);
        throw new RollBack();
      });
      await assert.rejects(rolledBack, RollBack);
      assert.equal(await isClaimed("m-2", destination), false);
    });

    test("another fingerprint is a mismatch", async () => {
      const claim = (fingerprint: Uint8Array) =>
        library.transaction((tx) =>
          idem(tx).claim("m-3", destination, { fingerprint, sentAt: new Date(), wait: false }),
        );
      assert.equal((await claim(Buffer.from([0, 1, 255]))).outcome, "claimed");
      assert.equal((await claim(Buffer.from([0, 1, 255]))).outcome, "duplicate");
      assert.equal((await claim(new Uint8Array([2]))).outcome, "mismatch");
    });

    test("batch returns one result for each id", async () => {
      const odd = 'a,{}"\\ \' é';
      const uuid = randomUUID();
      const ids = ["b-1", odd, uuid, 7n, 8, "b-1", "8", uuid.toUpperCase(), "NULL"];
      const claimed = await library.transaction((tx) => idem(tx).tryClaimBatch(ids, destination));
      const expected = [true, true, true, true, true, false, false, false, true];
      assert.deepEqual(claimed, expected);
      for (const id of [odd, uuid, "7", "8", "NULL"]) {
        assert.equal(await isClaimed(id, destination), true, id);
      }
      const none = await library.transaction((tx) => idem(tx).tryClaimBatch([], destination));
      assert.deepEqual(none, []);
    });

    test("recorded effects are read byte for byte", async () => {
      const messageId = randomUUID();
      const deliverAfter = new Date("2035-01-02T03:04:05.678Z");
      const bytes = new Uint8Array([0, 255, 1]);
      const recorded = await library.transaction(async (tx) => {
        await idem(tx).tryClaim("e-1", destination);
        return idem(tx).record("e-1", destination, [
          { topic: "t", payload: { n: [1, "é", null] }, key: "k", type: "y", headers: { a: 1 } },
          { topic: "u", payload: bytes, contentType: "x/y", messageId, deliverAfter },
          { topic: "v", payload: "a text" },
          { topic: "w", payload: null },
        ]);
      });
      assert.equal(recorded.length, 4);
      assert.equal(recorded[1], messageId);
      const read = await library.transaction((tx) => idem(tx).effects("e-1", destination));
      assert.deepEqual(
        read.map((effect) => effect.messageId),
        recorded,
      );
      const [json, binary, text, nothing] = read;
      assert.ok(json !== undefined && binary !== undefined);
      assert.deepEqual(json.json(), { n: [1, "é", null] });
      assert.deepEqual([json.topic, json.key, json.type], ["t", "k", "y"]);
      assert.deepEqual(json.headers, { a: 1 });
      assert.deepEqual([json.ordinal, binary.ordinal], [0, 1]);
      assert.deepEqual([...binary.payload], [...bytes]);
      assert.deepEqual([binary.contentType, binary.key], ["x/y", null]);
      assert.deepEqual(binary.deliverAfter, deliverAfter);
      assert.ok(Math.abs(json.recordedAt.getTime() - Date.now()) < 60_000);
      assert.equal(text?.json(), "a text");
      assert.equal(nothing?.json(), null);
      const [[payload] = []] = await query(
        "SELECT payload FROM idem_effects($1, $2) WHERE ordinal = 0",
        ["e-1", destination],
      );
      assert.deepEqual(Buffer.from(json.payload), payload);
    });

    test("sent messages are in the outbox", async () => {
      const [json, bytes] = await library.transaction(async (tx) => [
        await idem(tx).send({ topic: destination.slice(0, 200), payload: [1], headers: { a: 1 } }),
        await idem(tx).send({ topic: destination.slice(0, 200), payload: new Uint8Array([9]) }),
      ]);
      const rows = await query(
        "SELECT DISTINCT message_id::text, seq FROM idem.outbox WHERE topic = $1 ORDER BY seq",
        [destination.slice(0, 200)],
      );
      assert.deepEqual(
        rows.map(([messageId]) => messageId),
        [json, bytes],
      );
    });

    test("error has SQLSTATE, hint and cause", async () => {
      const failed = library.transaction((tx) => idem(tx).tryClaim("", destination));
      await assert.rejects(failed, (error: unknown) => {
        assert.ok(error instanceof IdemError, String(error));
        assert.equal(error.sqlstate, "22023");
        assert.equal(typeof error.hint, "string");
        assert.ok(!error.message.includes("\n"), error.message);
        assert.equal(error.retryable, false);
        assert.ok(error.cause instanceof Error);
        return true;
      });
    });

    test("leased message is a retryable error for a claim", async () => {
      const leased = await library.transaction((tx) => idem(tx).acquire("l-1", destination));
      assert.equal(leased.outcome, "acquired");
      assert.equal(typeof leased.token, "bigint");
      const failed = library.transaction((tx) => idem(tx).tryClaim("l-1", destination));
      await assert.rejects(failed, { name: "IdemError", sqlstate: "55P03", retryable: true });
      await library.transaction(async (tx) => {
        await idem(tx).extend(leased, { leaseMs: 60_000 });
        const effects = await idem(tx).complete(leased, { topic: "t", payload: 1 });
        assert.equal(effects.length, 1);
      });
      assert.equal(await isClaimed("l-1", destination), true);
      await assert.rejects(
        library.transaction((tx) => idem(tx).complete(leased)),
        { name: "LeaseLostError", sqlstate: "55000", retryable: false },
      );
    });

    test("inbox returns messages in order", async () => {
      await library.transaction(async (tx) => {
        const { inbox } = idem(tx);
        const json = { id: "i-1", destination, payload: { n: 1 }, headers: { h: [1] }, key: "k" };
        assert.equal(await inbox.receive(json), true);
        assert.equal(await inbox.receive(json), false);
        const bytes = { id: "i-2", destination, payload: new Uint8Array([0, 200]), type: "y" };
        assert.equal(await inbox.receive(bytes), true);
      });
      const [first, second] = await library.transaction(async (tx) => {
        assert.equal(await idem(tx).inbox.wait(destination, 20_000), true);
        return idem(tx).inbox.next(destination, { maxMessages: 10, leaseMs: 60_000 });
      });
      assert.ok(first !== undefined && second !== undefined);
      assert.deepEqual([first.id, second.id, first.attempt], ["i-1", "i-2", 1]);
      assert.deepEqual([first.json(), first.headers, first.key], [{ n: 1 }, { h: [1] }, "k"]);
      assert.deepEqual([[...second.payload], second.type], [[0, 200], "y"]);
      assert.equal(first.leaseExpired, false);
      await library.transaction((tx) => idem(tx).complete(first));
      const pause = await library.transaction((tx) =>
        idem(tx).release(second, { error: "no such address", final: true }),
      );
      assert.equal(pause, null);
      assert.equal(await isClaimed("i-1", destination), true);
      const requeued = await query("SELECT idem_requeue('i-2', $1)", [destination]);
      assert.deepEqual(requeued, [[true]]);
    });

    test("journal keeps responses", async () => {
      const step = { id: "j-1", destination, step: "charge" };
      const on = <T>(work: (tx: Executor) => Promise<T>) => library.transaction(work);
      const begun = await on((tx) => idem(tx).journal.beginCall(step, { request: { cents: 1 } }));
      assert.equal(begun.state, "new");
      await on((tx) => idem(tx).journal.finishCall(step, ["a", { b: null }]));
      const again = await on((tx) => idem(tx).journal.beginCall(step, { request: { cents: 1 } }));
      assert.ok(again.state === "done");
      assert.deepEqual(again.response, ["a", { b: null }]);
      assert.equal(again.idempotencyKey, begun.idempotencyKey);
      const [entry] = await on((tx) => idem(tx).journal.calls("j-1", destination));
      assert.deepEqual([entry?.step, entry?.state], ["charge", "done"]);
      await assert.rejects(
        on((tx) => idem(tx).journal.beginCall(step, { request: { cents: 2 } })),
        { sqlstate: "23000" },
      );
    });

    test("rejected message is a dead letter", async () => {
      const reject = (id: string | null, letter: RejectedLetter) =>
        library.transaction((tx) => idem(tx).reject(id, destination, letter));
      const letter = { payload: new Uint8Array([0, 255]), error: "broken", headers: { a: 1 } };
      assert.equal(await reject("d-1", letter), true);
      assert.equal(await reject("d-1", letter), false);
      const nameless = { payload: { a: 1 }, error: "broken", source: "queue" };
      assert.equal(await reject(null, nameless), true);
      const text = "SELECT FROM idem.dead_letters WHERE destination = $1";
      const left = await query(text, [destination]);
      assert.equal(left.length, 2);
    });

    test("pool is rejected at run time", () => {
      assert.ok(library.pools.length > 0);
      for (const pool of library.pools) {
        assert.throws(
          () => idem(pool as Executor),
          (error) => error instanceof TypeError && error.message.includes("not a pool"),
        );
      }
    });

    test("close", () => library.close());
  });
}
