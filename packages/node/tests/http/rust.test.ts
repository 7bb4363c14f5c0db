/** Responses that the crate `idem-http` has recorded, and the form of those of this package. */

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { describe, test } from "node:test";

import { idem, transactions } from "../../src/index.js";
import { ask } from "./client.js";
import { KINDS } from "./config.js";
import { openDatabase, type Work } from "./database.js";
import { withService } from "./service.js";

const observer = await openDatabase();

const FINGERPRINT = createHash("sha256").update("POST\0/orders?a=%20b&c\0k").digest("hex");
const REQUEST = ask("k").to({ path: "/orders?a=%20b&c" });
const RESPONSE = {
  fingerprint: FINGERPRINT,
  status: 402,
  headers: [
    ["content-type", "text/plain"],
    ["x-two", "1"],
    ["x-two", "2"],
    ["x-b", "\xfc"],
  ],
  body_base64: "AP9ydXN0",
};

/** Records a response with the statements of the crate `idem-http`. */
async function recordAsRust({ config }: Work, id: string, withClaim: boolean): Promise<void> {
  const client = await observer.connect();
  const call = [id, config.destination, "http-response"];
  await client.query("BEGIN");
  if (withClaim) {
    const claim = "SELECT outcome FROM idem_claim($1, $2, false, decode($3, 'hex'))";
    await client.query(claim, [id, config.destination, FINGERPRINT]);
  }
  const request = JSON.stringify({ fingerprint: FINGERPRINT });
  await client.query("SELECT * FROM idem_begin_call($1, $2, $3, $4)", [...call, request]);
  const response = JSON.stringify(RESPONSE);
  await client.query("SELECT idem_finish_call($1, $2, $3, $4)", [...call, response]);
  await client.query("COMMIT");
  client.release();
}

for (const [kind, options] of Object.entries(KINDS)) {
  describe(kind, { concurrency: 3 }, () => {
    for (const byTenant of [false, true]) {
      const whose = byTenant ? "a caller" : "all callers";
      test(`response that Rust has recorded for ${whose} is replayed`, () =>
        withService(observer, { ...options, byTenant }, async (service) => {
          const request = byTenant ? REQUEST.with("x-tenant", "acme!") : REQUEST;
          await recordAsRust(service.work, byTenant ? "by:5:acme!:k" : "all:k", true);
          const replayed = await service.send(request);
          assert.equal(replayed.status, 402);
          assert.deepEqual(replayed.bytes, Buffer.from("\0\xffrust", "latin1"));
          assert.ok(replayed.isReplayed);
          assert.equal(replayed.header("content-type"), "text/plain");
          // The headers of fetch have one value for each name.
          const two = options.framework === "hono" ? ["1, 2"] : ["1", "2"];
          assert.deepEqual(replayed.values("x-two"), two);
          assert.equal(replayed.header("x-b"), "\xfc");
          const other = await service.send(request.to({ path: "/orders?a=+b&c" }));
          other.assertProblem(422, "mismatch");
          assert.equal(service.runs, 0);
        }));
    }

    test("recorded response has the form of Rust", () =>
      withService(observer, options, async (service) => {
        const kept = ["x-run", "x-charges", "x-other", "content-type"];
        const first = await service.send(REQUEST);
        const { destination } = service.work.config;
        const stored = (await service.work.value(
          "SELECT response FROM idem_calls('all:k', $1) " +
            "WHERE step = 'http-response' AND state = 'done'",
          [destination],
        )) as typeof RESPONSE;
        const { headers, ...rest } = stored;
        assert.deepEqual(rest, {
          fingerprint: FINGERPRINT,
          status: 201,
          body_base64: "cnVuIDEsIGs=",
        });
        const recorded = headers.filter(([name]) => kept.includes(String(name)));
        const sent = first.headers.filter(([name]) => kept.includes(name));
        assert.deepEqual(recorded.sort(), sent.map((header) => [...header]).sort());
        // idem_begin_call accepts the same request only: 23000 for another one.
        const begin =
          "SELECT state::text FROM idem_begin_call('all:k', $1, 'http-response', $2::jsonb)";
        const request = JSON.stringify({ fingerprint: FINGERPRINT });
        assert.equal(await service.work.value(begin, [destination, request]), "done");
        const fingerprint = Buffer.from(FINGERPRINT, "hex");
        const claim = await transactions(observer)((client) =>
          idem(client).claim("all:k", destination, { wait: false, fingerprint }),
        );
        assert.equal(claim.outcome, "duplicate");
      }));
  });
}
