/** Rules without a database: the same cases as the unit tests of the crate `idem-http`. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";

import { fingerprintOf } from "../../src/http/fingerprint.js";
import { Idempotency } from "../../src/http/idempotency.js";
import { Scope } from "../../src/http/index.js";
import { keyOf } from "../../src/http/key.js";
import { HeldResponse } from "../../src/http/node-response.js";
import { Rules } from "../../src/http/options.js";
import { Problem, problemOf, wholeSeconds, type Kind } from "../../src/http/problem.js";
import { Recorded } from "../../src/http/recorded.js";
import { retried } from "../../src/http/retry.js";
import { CommitUnknownError, IdemError } from "../../src/index.js";
import { ask, exchange, type Answer } from "./client.js";

function failsWith(kind: Kind, work: () => unknown): void {
  assert.throws(work, (error) => error instanceof Problem && error.kind === kind);
}

test("valid key is parsed", () => {
  const cases = [
    ['"8e03978e-40d5-43dd-bc93-6894a57f9324"', "8e03978e-40d5-43dd-bc93-6894a57f9324"],
    [String.raw`  "a \"quoted\" \\ one" `, String.raw`a "quoted" \ one`],
    ['"a";version=1', "a"],
    ['"a"; v=1.5;w;*x=?1; y="s";z=tok/en:1;b=:aGk=:;d=@12;e=%"f%c3%bc"  ', "a"],
    ["8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"],
    ["Zm9v+/==", "Zm9v+/=="],
    ["\tbare ", "bare"],
    ["x".repeat(255), "x".repeat(255)],
  ] as const;
  for (const [value, key] of cases) assert.equal(keyOf([value]), key);
});

const BAD_KEYS = [
  "",
  '""',
  '"open',
  '"a" b"',
  '"a", "b"',
  String.raw`"a\b"`,
  '"a\\',
  "a b",
  "a, b",
  "a;b",
  'a"b',
  "a\\b",
  "\xe4",
  '"a\tb"',
  '"a\x7f"',
  '"a";"',
  '"a";Version=1',
  '"a";v=',
  '"a";v=1.2345',
  '"a";v=1234567890123456',
  '"a";v=?2',
  '"a";v="open',
  '"a" ;v=1',
  '"a"\t;',
  "x".repeat(256),
  `"${"x".repeat(256)}"`,
];

test("invalid key is rejected", () => {
  for (const value of BAD_KEYS) failsWith("bad-key", () => keyOf([value]));
});

test("reason says what is wrong and where", () => {
  const cases = [
    ['"open', 5],
    [String.raw`"a\b"`, 3],
    ['"a\tb"', 2],
    ['"a" b"', 4],
  ] as const;
  for (const [value, index] of cases) {
    const reason = new RegExp(` at index ${String(index)}; a key in quotes must be one string`);
    assert.throws(() => keyOf([value]), reason);
  }
});

test("repeated header is rejected", () => {
  assert.equal(keyOf([]), null);
  assert.throws(() => keyOf(["a", "a"]), /more than once/);
});

test("fingerprint covers method, path, query and body", () => {
  const body = Buffer.from("{}");
  const first = fingerprintOf("POST", "/orders?a=1", body);
  // printf 'POST\0/orders?a=1\0{}' | sha256sum
  const expected = "13ca9e2d2cde37fdbb4a9efec2a25ac60d9edcf39818510eeca7d15c57b3c7a5";
  assert.equal(first.toString("hex"), expected);
  const others = [
    fingerprintOf("PATCH", "/orders?a=1", body),
    fingerprintOf("POST", "/order?a=1", body),
    fingerprintOf("POST", "/orders?a=2", body),
    fingerprintOf("POST", "/orders", body),
    fingerprintOf("POST", "/orders?a=1", Buffer.from("{ }")),
    fingerprintOf("POST", "//orders?a=1", body),
  ];
  for (const other of others) assert.notDeepEqual(first, other);
  assert.deepEqual(fingerprintOf("POST", "http://host:80/orders?a=1", body), first);
  const root = fingerprintOf("POST", "/?a=1", body);
  assert.deepEqual(fingerprintOf("POST", "http://host?a=1", body), root);
});

test("id has the form of the Rust layer", () => {
  assert.equal(Scope.singleTenant().idOf(undefined, "k"), "all:k");
  assert.equal(Scope.by(() => "é:").idOf(undefined, "k"), "by:3:é::k");
  for (const caller of [null, undefined, "", "a\0b", "\ud800"]) {
    failsWith("unknown-caller", () => Scope.by(() => caller).idOf(undefined, "k"));
  }
  failsWith("key-too-long", () => Scope.by(() => "t".repeat(800)).idOf(0, "x".repeat(255)));
});

test("caller that is no text is an error, and no shared caller", () => {
  for (const caller of [7, true, {}, Promise.resolve("a")]) {
    const scope = Scope.by(() => caller as unknown as string);
    assert.throws(() => scope.idOf(undefined, "k"), TypeError);
  }
});

test("middleware with invalid options is rejected", () => {
  const scope = Scope.singleTenant();
  const rejected = (options: object, message: RegExp) => {
    assert.throws(() => new Rules(options as never), message);
  };
  rejected({ destination: "d" }, /scope must be/);
  rejected({ destination: "d", scope: () => "a" }, /scope must be/);
  rejected({ destination: "", scope }, /destination must be/);
  rejected({ scope }, /destination must be/);
  rejected({ destination: "d", scope, mode: "other" }, /mode must be/);
  rejected({ destination: "d", scope, methods: "POST" }, /methods must be/);
  rejected({ destination: "d", scope, methods: ["POST", "patch"] }, /upper case/);
  for (const leaseMs of [99, 86_400_001, NaN]) {
    rejected({ destination: "d", scope, leaseMs }, /leaseMs must be/);
  }
  assert.throws(() => Scope.by(undefined as never), /needs a function/);
});

const HEADERS = [
  ["X-Two", "first"],
  ["x-two", "second"],
  ["x-bytes", "\xfc\xff"],
  ["x-secret", "not kept"],
  ["connection", "close, X-Hop"],
  ["x-hop", "1"],
  ["date", "now"],
  ["content-length", "7"],
  ["transfer-encoding", "chunked"],
  ["keep-alive", "1"],
] as const;

test("replayed response is identical", () => {
  const fingerprint = fingerprintOf("GET", "/", Buffer.alloc(0));
  const body = Buffer.from("\0\xffbytes", "latin1");
  const response = { status: 201, headers: HEADERS, body };
  const recorded = Recorded.of(fingerprint, response, (name) => name !== "x-secret");
  const stored: unknown = JSON.parse(JSON.stringify(recorded.stored));
  assert.deepEqual(stored, {
    fingerprint: fingerprint.toString("hex"),
    status: 201,
    headers: [
      ["x-two", "first"],
      ["x-two", "second"],
      ["x-bytes", "\xfc\xff"],
    ],
    body_base64: "AP9ieXRlcw==",
  });
  const read = Recorded.from(stored);
  assert.ok(read.equals(recorded));
  const replayed = read.replay(fingerprint);
  assert.deepEqual([replayed.status, replayed.body], [201, body]);
  assert.deepEqual(replayed.headers.at(-1), ["idempotency-replayed", "true"]);
  const other = fingerprintOf("GET", "/", Buffer.from("other"));
  failsWith("mismatch", () => read.replay(other));
});

test("unreadable record is a failure", () => {
  const stored = { fingerprint: "", status: 201, headers: [["x-a", "1"]], body_base64: "" };
  assert.equal(Recorded.from(stored).stored.status, 201);
  const changes = [
    { fingerprint: 1 },
    { status: "201" },
    { headers: 1 },
    { headers: [["x-a"]] },
    { body_base64: "*" },
  ];
  for (const change of changes) {
    failsWith("failed", () => Recorded.from({ ...stored, ...change }));
  }
  for (const value of [null, undefined, {}, 7]) failsWith("failed", () => Recorded.from(value));
});

test("header that cannot be sent is a failure", () => {
  for (const text of ["a\r\nb", "a\nb", "a\0", "\u0100", "\u{1f600}"]) {
    for (const header of [[text, "1"] as const, ["x-a", text] as const]) {
      const response = { status: 201, headers: [header], body: Buffer.alloc(0) };
      failsWith("failed", () => Recorded.of(Buffer.alloc(0), response, () => true));
      const stored = { fingerprint: "", status: 201, headers: [header], body_base64: "" };
      failsWith("failed", () => Recorded.from(stored));
    }
  }
});

test("error of the database becomes a problem", () => {
  const kind = (error: unknown) => problemOf(error).kind;
  assert.equal(kind(new IdemError("lost", {})), "unavailable");
  assert.equal(kind(new IdemError("conflict", { sqlstate: "40001" })), "unavailable");
  // After a switchover, an old primary is read-only until the clients use the new one.
  assert.equal(kind(new IdemError("read-only", { sqlstate: "25006" })), "unavailable");
  assert.equal(kind(new IdemError("other", { sqlstate: "25001" })), "failed");
  assert.equal(kind(new CommitUnknownError("lost", { retryable: true })), "in-doubt");
  assert.equal(kind(new TypeError("a fault")), "failed");
  assert.equal(kind(new Problem("mismatch")), "mismatch");
});

test("problem after leased work is in doubt", () => {
  const kinds = ["unavailable", "failed", "mismatch"] as const;
  const after = kinds.map((kind) => new Problem(kind).afterWork().kind);
  assert.deepEqual(after, ["in-doubt", "in-doubt", "mismatch"]);
});

test("step is repeated only while that is safe", async () => {
  let attempts = 0;
  const fail = (error: Error) => () => {
    attempts += 1;
    return Promise.reject(error);
  };
  const lost = new IdemError("lost", {});
  await assert.rejects(retried(fail(lost), () => attempts < 2), lost);
  assert.equal(attempts, 2);
  attempts = 0;
  const fault = new IdemError("a fault", { sqlstate: "42601" });
  await assert.rejects(retried(fail(fault)), fault);
  assert.equal(attempts, 1);
});

test("fault in the options gets 500 and is reported", async () => {
  const errors: unknown[] = [];
  const scope = Scope.singleTenant();
  const rules = new Rules({ destination: "d", scope, onError: (error) => errors.push(error) });
  const fault = new TypeError("a fault");
  const idempotency = new Idempotency(rules, () => Promise.reject(fault));
  const head = { method: "POST", target: "/" };
  const { signal: disconnected } = new AbortController();
  const run = () => Promise.reject(new Error("the handler was executed"));
  const result = await idempotency.result("all:k", head, Buffer.alloc(0), { disconnected, run });
  assert.ok(result.kind === "other");
  assert.equal(result.response.status, 500);
  assert.deepEqual(errors, [fault]);
  assert.throws(() => idempotency.of({}), /not protected/);
});

async function withServer(
  handle: (response: ServerResponse) => void,
  check: (answer: Answer) => void,
): Promise<void> {
  const server = createServer((_, response) => {
    handle(response);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  try {
    check(await exchange((server.address() as AddressInfo).port, ask("k")));
  } finally {
    server.close();
  }
}

test("handler cannot change a response that replaces its own", () =>
  withServer(
    (response) => {
      response.setHeader("x-before", "1");
      const held = new HeldResponse(response, () => 10);
      held.complete.catch(() => undefined);
      response.setHeader("x-before", "2");
      response.setHeader("date", "now");
      response.writeHead(201, "message", { "x-handler": "1" });
      response.write("more than ten bytes");
      held.send({ status: 409, headers: [["x-other", "1"]], body: Buffer.from("other") });
      // After the end, Node.js emits an error for a write that is not ignored.
      response.write("late");
      response.end("late");
    },
    (answer) => {
      assert.deepEqual([answer.status, answer.body], [409, "other"]);
      const names = ["x-before", "x-handler", "x-other", "content-length"];
      assert.deepEqual(names.map((name) => answer.header(name)), ["1", undefined, "1", "5"]);
      assert.notEqual(answer.header("date") ?? "now", "now");
    },
  ));

test("handler cannot change its response after the end", () =>
  withServer(
    (response) => {
      const held = new HeldResponse(response, () => 100);
      response.writeHead(201, ["x-two", "1", "x-two", "2"]);
      response.write("fir");
      response.end("st", () => undefined);
      response.setHeader("x-late", "1");
      response.statusCode = 500;
      response.end("second");
      held.send();
    },
    (answer) => {
      assert.deepEqual([answer.status, answer.body], [201, "first"]);
      assert.deepEqual([answer.values("x-two"), answer.values("x-late")], [["1", "2"], []]);
    },
  ));

test("response of an error handler replaces one that has begun", () =>
  withServer(
    (response) => {
      const held = new HeldResponse(response, () => 100);
      response.writeHead(201, [["x-first", "1"]]);
      response.write("part");
      response.statusCode = 500;
      response.end("error");
      held.send();
    },
    (answer) => {
      assert.deepEqual([answer.status, answer.body], [500, "error"]);
    },
  ));

test("retry after is in whole seconds", () => {
  assert.deepEqual([0, 1001, 30_000].map(wholeSeconds), [1, 2, 30]);
});
