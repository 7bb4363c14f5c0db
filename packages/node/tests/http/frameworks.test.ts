/** What other middleware and hooks of a framework do with a protected request. */

import assert from "node:assert/strict";
import { once as event } from "node:events";
import { readFileSync } from "node:fs";
import { createServer, type Server, type ServerResponse } from "node:http";
import { connect } from "node:http2";
import type { AddressInfo, Socket } from "node:net";
import { PassThrough, Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { serve, type HttpBindings } from "@hono/node-server";
import express, { type RequestHandler } from "express";
import fastify, { type FastifyInstance, type FastifyReply } from "fastify";
import { Hono } from "hono";
import pg from "pg";

import {
  expressIdempotency,
  fastifyIdempotency,
  honoIdempotency,
  Scope,
} from "../../src/http/index.js";
import { fingerprintOf } from "../../src/http/fingerprint.js";
import { ask, disconnecting, exchange, type Answer, type Ask } from "./client.js";
import { configOf } from "./config.js";
import { openDatabase, Work } from "./database.js";
import { until } from "./state.js";

const observer = await openDatabase();

/** Waits for something that is true when all callbacks of this turn have run. */
const turn = () => new Promise((resolve) => setTimeout(resolve, 5));

interface Ground {
  readonly work: Work;
  readonly pool: pg.Pool;
  readonly errors: unknown[];
  readonly options: {
    destination: string;
    scope: Scope;
    requestLimit: number;
    responseLimit: number;
    onError: (error: unknown) => void;
  };
}

async function withGround(execute: (ground: Ground) => Promise<void>): Promise<void> {
  const work = await Work.create(configOf({}), observer);
  const { destination, name } = work.config;
  const pool = new pg.Pool({ max: 4, application_name: name });
  pool.on("error", () => undefined);
  const errors: unknown[] = [];
  const options = {
    destination,
    scope: Scope.singleTenant(),
    requestLimit: 100,
    responseLimit: 1000,
    onError: (error: unknown) => void errors.push(error),
  };
  try {
    await execute({ work, pool, errors, options });
  } finally {
    await pool.end();
  }
}

async function onExpress(
  middleware: RequestHandler[],
  execute: (send: (sent: Ask) => Promise<Answer>, port: number) => Promise<void>,
  framework = express,
): Promise<void> {
  const app = framework();
  app.set("env", "test");
  app.post("/orders", ...middleware);
  app.use(((error, _request, response, next) => {
    if (response.headersSent) next(error);
    else response.status(500).send(String(error));
  }) as express.ErrorRequestHandler);
  const server = createServer(app).listen(0, "127.0.0.1");
  await event(server, "listening");
  const { port } = server.address() as AddressInfo;
  try {
    await execute((sent) => exchange(port, sent), port);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

/** Lets handlers get bodies of all types as text. */
function textual(app: FastifyInstance): FastifyInstance {
  app.addContentTypeParser("*", { parseAs: "string" }, (_request, body, done) => {
    done(null, body);
  });
  return app;
}

async function onFastify(
  app: FastifyInstance,
  execute: (send: (sent: Ask) => Promise<Answer>, port: number) => Promise<void>,
): Promise<void> {
  await app.listen({ port: 0, host: "127.0.0.1" });
  const { port } = app.server.address() as AddressInfo;
  try {
    await execute((sent) => exchange(port, sent), port);
  } finally {
    app.server.closeAllConnections();
    await app.close();
  }
}

test("asynchronous hook onSend of Fastify runs no second handler", () =>
  withGround(async ({ work, pool, options }) => {
    const app = textual(fastify());
    let runs = 0;
    const once = fastifyIdempotency(pool, options);
    app.addHook("onSend", async (_request, _reply, payload) => {
      await turn();
      return payload;
    });
    app.post("/orders", once, async (_request, reply) => {
      runs += 1;
      return reply.code(201).header("x-run", String(runs)).send("done");
    });
    await onFastify(app, async (send) => {
      const first = await send(ask("k"));
      first.assertRun(201, 1);
      (await send(ask("k"))).assertReplayOf(first);
      (await send(ask("k").to({ body: "other" }))).assertProblem(422, "mismatch");
      (await send(ask("k").withoutKey())).assertProblem(400, "missing-key");
      assert.equal(runs, 1);
      (await send(ask("l").to({ body: "x".repeat(101) }))).assertProblem(413, "request-too-large");
      await turn();
      await turn();
      await work.untilQuiet();
      assert.deepEqual([runs, await work.claims()], [1, 1]);
    });
  }));

test("hook onSend of Fastify changes a response once", () =>
  withGround(async ({ pool, options }) => {
    const app = textual(fastify());
    app.addHook("onSend", async (_request, _reply, payload) => `[${String(payload)}]`);
    const once = fastifyIdempotency(pool, options);
    app.post("/orders", once, async (_request, reply) => reply.code(201).send("done"));
    await onFastify(app, async (send) => {
      const first = await send(ask("k"));
      assert.equal(first.body, "[done]");
      (await send(ask("k"))).assertReplayOf(first);
    });
  }));

test("hook onSend of a route changes each response", () =>
  withGround(async ({ pool, options }) => {
    const app = textual(fastify());
    const once = fastifyIdempotency(pool, options);
    const hook = (_request: unknown, _reply: unknown, payload: unknown) =>
      Promise.resolve(`[${String(payload)}]`);
    app.post("/orders", { ...once, onSend: [once.onSend, hook] }, (_request, reply) =>
      reply.code(201).send("done"),
    );
    await onFastify(app, async (send) => {
      const first = await send(ask("k"));
      assert.equal(first.body, "[done]");
      (await send(ask("k"))).assertReplayOf(first);
    });
  }));

test("second response of a handler of Fastify is dropped", () =>
  withGround(async ({ pool, options }) => {
    const app = textual(fastify());
    const once = fastifyIdempotency(pool, options);
    app.post("/orders", once, async (request, reply) => {
      void reply.code(201).send("done");
      if (request.body === "failing") throw new Error("the handler fails");
    });
    await onFastify(app, async (send) => {
      for (const key of ["k", "failing"]) {
        const first = await send(ask(key));
        assert.deepEqual([first.status, first.body], [201, "done"]);
        const again = await send(ask(key));
        again.assertReplayOf(first);
        assert.equal(again.header("content-type"), first.header("content-type"));
      }
    });
  }));

test("Response of fetch that a handler of Fastify returns is recorded", () =>
  withGround(async ({ pool, options }) => {
    const app = textual(fastify());
    const once = fastifyIdempotency(pool, options);
    const headers = { "x-own": "1" };
    app.post("/orders", once, () => new Response("done", { status: 201, headers }));
    await onFastify(app, async (send) => {
      const first = await send(ask("k"));
      assert.deepEqual([first.status, first.body, first.header("x-own")], [201, "done", "1"]);
      const again = await send(ask("k"));
      again.assertReplayOf(first);
      assert.equal(again.header("x-own"), "1");
    });
  }));

test("handler of Fastify cannot hijack a protected response", () =>
  withGround(async ({ pool, options, work }) => {
    const app = textual(fastify());
    const once = fastifyIdempotency(pool, options);
    app.post("/orders", once, (_request, reply) => {
      reply.hijack();
      reply.raw.end("not held back");
    });
    await onFastify(app, async (send) => {
      assert.equal((await send(ask("k"))).status, 500);
      await work.untilQuiet();
      await work.assertUntouched();
    });
  }));

for (const how of ["raw response", "failing hook onSend"]) {
  test(`response of Fastify that a ${how} sends is not committed`, () =>
    withGround(async ({ pool, options, work, errors }) => {
      const app = textual(fastify());
      app.addHook("onSend", async (_request, _reply, payload) => {
        if (how === "failing hook onSend") throw new Error("the hook fails");
        return payload;
      });
      const once = fastifyIdempotency(pool, options);
      app.post("/orders", once, async (request, reply) => {
        await once.of(request).client.query(`INSERT INTO ${work.config.table} VALUES ('k')`);
        if (how === "raw response") reply.raw.end("not held back");
        else return "done";
        return reply;
      });
      await onFastify(app, async (send) => {
        await send(ask("k"));
        await work.untilQuiet();
        await work.assertUntouched();
        assert.match(String(errors[0]), /bypassed/);
      });
    }));
}

test("routes of Fastify without the hooks are not protected", () =>
  withGround(async ({ pool, options, work }) => {
    const app = textual(fastify());
    const done = (text: string) => async (_request: unknown, reply: FastifyReply) =>
      reply.code(201).send(text);
    app.post("/orders", fastifyIdempotency(pool, options), done("ordered"));
    const destination = `${options.destination}.refund`;
    app.post("/refunds", fastifyIdempotency(pool, { ...options, destination }), done("refunded"));
    app.post("/login", done("welcome"));
    await onFastify(app, async (send) => {
      for (const [path, text] of [["/orders", "ordered"], ["/refunds", "refunded"]] as const) {
        const first = await send(ask("k").to({ path }));
        assert.deepEqual([first.status, first.body], [201, text]);
        (await send(ask("k").to({ path }))).assertReplayOf(first);
      }
      assert.equal(await work.claims(), 1);
      for (const sent of [ask("l"), ask("l").withoutKey()]) {
        const login = await send(sent.to({ path: "/login" }));
        assert.deepEqual([login.status, login.body, login.isReplayed], [201, "welcome", false]);
        assert.equal((await send(sent.to({ path: "/unknown" }))).status, 404);
      }
      assert.equal(await work.claims(), 1);
    });
  }));

test("file that a handler of Express sends is recorded", () =>
  withGround(async ({ pool, options }) => {
    const file = new URL("../../package.json", import.meta.url);
    const handler: RequestHandler = (_request, response) => {
      response.sendFile(fileURLToPath(file));
    };
    await onExpress([expressIdempotency(pool, options), handler], async (send) => {
      const first = await send(ask("k"));
      assert.deepEqual([first.status, first.body], [200, readFileSync(file, "utf8")]);
      const again = await send(ask("k"));
      again.assertReplayOf(first);
      for (const name of ["content-type", "etag", "content-length"]) {
        assert.equal(again.header(name), first.header(name));
      }
    });
  }));

/** Replaces members of the response as `compression` and `on-headers` do. */
const transforming: RequestHandler = (_request, response, next) => {
  const raw = response as unknown as ServerResponse & { _header: unknown; _implicitHeader(): void };
  const write = raw.write.bind(raw) as (chunk: string, encoding: "utf8") => boolean;
  const end = raw.end.bind(raw) as (chunk: string, encoding: "utf8") => typeof raw;
  const writeHead = raw.writeHead.bind(raw) as (...given: unknown[]) => typeof raw;
  const fixHead = () => {
    if (!raw._header) raw._implicitHeader();
  };
  let hasBegun = false;
  raw.writeHead = (...given: unknown[]) => {
    if (!hasBegun) {
      hasBegun = true;
      raw.removeHeader("content-length");
      raw.setHeader("content-encoding", "upper");
    }
    return writeHead(...given);
  };
  const changed = (chunk: unknown) => (chunk as Buffer | string).toString().toUpperCase();
  raw.write = (chunk: unknown) => {
    fixHead();
    return write(changed(chunk), "utf8");
  };
  raw.end = (chunk?: unknown) => {
    fixHead();
    return end(changed(chunk ?? ""), "utf8");
  };
  next();
};

for (const place of ["outside", "inside"]) {
  test(`middleware that changes responses ${place} changes a stream once`, () =>
    withGround(async ({ pool, options, work }) => {
      const once = expressIdempotency(pool, options);
      const both = place === "outside" ? [transforming, once] : [once, transforming];
      const handler: RequestHandler = async (_request, response) => {
        response.status(201);
        await pipeline(Readable.from(["one, ", "two, ", "three"]), response);
      };
      await onExpress([...both, handler], async (send) => {
        const first = await send(ask("k"));
        assert.deepEqual([first.status, first.body], [201, "ONE, TWO, THREE"]);
        assert.equal(first.header("content-encoding"), "upper");
        const recorded = place === "outside" ? "one, two, three" : first.body;
        assert.ok((await work.recorded()).includes(Buffer.from(recorded).toString("base64")));
        const again = await send(ask("k"));
        again.assertReplayOf(first);
        assert.equal(again.header("content-encoding"), "upper");
      });
    }));
}

test("middleware that waits for the head of a response adds a header", () =>
  withGround(async ({ pool, options }) => {
    const adding: RequestHandler = (_request, response, next) => {
      const writeHead = response.writeHead.bind(response);
      response.writeHead = ((status: number) => {
        response.setHeader("x-added", "1");
        return writeHead(status);
      }) as typeof writeHead;
      next();
    };
    const handler: RequestHandler = (_request, response) => void response.status(201).send("done");
    await onExpress([expressIdempotency(pool, options), adding, handler], async (send) => {
      const first = await send(ask("k"));
      assert.deepEqual([first.status, first.header("x-added")], [201, "1"]);
      const again = await send(ask("k"));
      again.assertReplayOf(first);
      assert.equal(again.header("x-added"), "1");
    });
  }));

test("handler that waits for its writes above the limit ends", () =>
  withGround(async ({ pool, options }) => {
    const once = expressIdempotency(pool, options);
    let proceed: () => void = () => undefined;
    const hasResponse = new Promise<void>((resolve) => (proceed = resolve));
    let ended = Promise.resolve();
    const handler: RequestHandler = (_request, response) => {
      ended = (async () => {
        response.write(Buffer.alloc(options.responseLimit + 1));
        await hasResponse;
        await new Promise((resolve) => response.write("more", resolve));
        await new Promise<void>((resolve) => void response.end(resolve));
      })();
    };
    await onExpress([once, handler], async (send) => {
      (await send(ask("k"))).assertProblem(500, "response-too-large");
      proceed();
      await ended;
    });
  }));

test("response that cannot be sent after its commit closes the connection", () =>
  withGround(async ({ pool, options, work }) => {
    const app = textual(fastify());
    let isFirst = true;
    app.addHook("onRequest", async (_request, reply) => {
      const { raw } = reply;
      const end = raw.end.bind(raw);
      raw.end = ((chunk: unknown) => {
        if (!isFirst) return end(chunk);
        isFirst = false;
        throw new Error("not sent");
      }) as typeof raw.end;
    });
    const once = fastifyIdempotency(pool, options);
    app.post("/orders", once, async (_request, reply) => reply.code(201).send("done"));
    await onFastify(app, async (send) => {
      await assert.rejects(send(ask("k")), /socket hang up/);
      assert.equal(await work.claims(), 1);
      const again = await send(ask("k"));
      assert.deepEqual([again.status, again.body, again.isReplayed], [201, "done", true]);
    });
  }));

test("response with an invalid status is not committed", () =>
  withGround(async ({ pool, options, work }) => {
    const once = expressIdempotency(pool, options);
    const handler: RequestHandler = async (request, response) => {
      await once.of(request).client.query(`INSERT INTO ${work.config.table} VALUES ('k')`);
      response.statusCode = 9999;
      response.end("body");
    };
    await onExpress([once, handler], async (send) => {
      await assert.rejects(send(ask("k")), /socket hang up/);
      await work.untilQuiet();
      await work.assertUntouched();
    });
  }));

test("response with an invalid message closes the connection, and is replayed", () =>
  withGround(async ({ pool, options, work }) => {
    const once = expressIdempotency(pool, options);
    const handler: RequestHandler = (_request, response) => {
      response.statusMessage = "two\nlines";
      response.end("body");
    };
    await onExpress([once, handler], async (send) => {
      await assert.rejects(send(ask("k")), /socket hang up/);
      assert.equal(await work.claims(), 1);
      const again = await send(ask("k"));
      assert.deepEqual([again.status, again.body, again.isReplayed], [200, "body", true]);
    });
  }));

async function onHono(
  app: Hono<{ Bindings: HttpBindings }>,
  execute: (port: number) => Promise<void>,
): Promise<void> {
  const server = serve({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" }) as Server;
  await event(server, "listening");
  try {
    await execute((server.address() as AddressInfo).port);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

test("header that a handler of Hono sets in place of another one is recorded", () =>
  withGround(async ({ pool, options }) => {
    const app = new Hono<{ Bindings: HttpBindings }>();
    app.use(async (c, next) => {
      c.header("cache-control", "no-store");
      await next();
    });
    const once = honoIdempotency(pool, options);
    app.post("/orders", once, (c) => c.text("done", 201, { "cache-control": "max-age=5" }));
    await onHono(app, async (port) => {
      const first = await exchange(port, ask("k"));
      const again = await exchange(port, ask("k"));
      again.assertReplayOf(first);
      for (const { headers } of [first, again]) {
        const values = headers.filter(([name]) => name === "cache-control");
        assert.deepEqual(values, [["cache-control", "max-age=5"]]);
      }
    });
  }));

test("client of Hono that disconnects is not an error of the service", () =>
  withGround(async ({ pool, options, work }) => {
    const app = new Hono<{ Bindings: HttpBindings }>();
    const errors: unknown[] = [];
    const statuses: number[] = [];
    let release: () => void = () => undefined;
    const released = new Promise<void>((resolve) => (release = resolve));
    app.onError((error, c) => {
      errors.push(error);
      return c.text("", 500);
    });
    app.use(async (c, next) => {
      await next();
      statuses.push(c.res.status);
    });
    let running = 0;
    app.post("/orders", honoIdempotency(pool, options), async (c) => {
      running += 1;
      await released;
      return c.text("done");
    });
    await onHono(app, async (port) => {
      await disconnecting(port, ask("k"), () => until(() => running === 1));
      await until(() => statuses.length === 1);
      await work.untilQuiet();
      release();
      await turn();
      assert.deepEqual([statuses, errors], [[499], []]);
      await work.assertUntouched();
    });
  }));

test("fingerprint has the target as it was sent in each framework", () =>
  withGround(async ({ pool, options, work }) => {
    const path = '/orders?name="a|b"&x=%7e';
    const expected = fingerprintOf("POST", path, Buffer.from("k")).toString("hex");
    const sent = ask("k").to({ path });
    const check = async (port: number) => {
      assert.equal((await exchange(port, sent)).status, 200);
      assert.ok((await work.recorded()).includes(expected));
    };
    const app = new Hono<{ Bindings: HttpBindings }>();
    app.post("/orders", honoIdempotency(pool, options), (c) => c.text("done"));
    await onHono(app, check);
    const once = expressIdempotency(pool, options);
    await onExpress([once, (_request, response) => void response.send("done")], async (send) => {
      assert.equal((await send(sent)).isReplayed, true);
    });
  }));

test("body of HTTP/2 without a length is a part of the request", () =>
  withGround(async ({ pool, options }) => {
    const app = fastify({ http2: true });
    app.addContentTypeParser("*", { parseAs: "string" }, (_request, body, done) => {
      done(null, body);
    });
    const once = fastifyIdempotency(pool, options);
    app.post("/orders", once, (request, reply) => reply.send(`got ${String(request.body)}`));
    await app.listen({ port: 0, host: "127.0.0.1" });
    const { port } = app.server.address() as AddressInfo;
    const session = connect(`http://127.0.0.1:${String(port)}`);
    const send = async (key: string, body: string | undefined) => {
      const stream = session.request(
        { ":method": "POST", ":path": "/orders", "idempotency-key": key, "content-type": "a/b" },
        { endStream: body === undefined },
      );
      if (body !== undefined) stream.end(body);
      const [headers] = (await event(stream, "response")) as [Record<string, unknown>];
      const text = (await stream.toArray()).join("");
      return [headers[":status"], headers["idempotency-replayed"], text];
    };
    try {
      assert.deepEqual(await send("k", "body"), [200, undefined, "got body"]);
      assert.deepEqual(await send("k", "body"), [200, "true", "got body"]);
      assert.equal((await send("k", "other"))[0], 422);
      assert.equal((await send("large", "x".repeat(101)))[0], 413);
      assert.equal((await send("none", undefined))[0], 200);
    } finally {
      session.destroy();
      await app.close();
    }
  }));

test("leased response that its handler destroys gives the lease back", () =>
  withGround(async ({ pool, options, errors }) => {
    const once = expressIdempotency(pool, { ...options, mode: "lease" });
    let runs = 0;
    const handler: RequestHandler = (_request, response) => {
      runs += 1;
      response.status(201).write("part");
      if (runs === 1) response.destroy(new Error("broken"));
      else response.end();
    };
    await onExpress([once, handler], async (send) => {
      await assert.rejects(send(ask("k")), /socket hang up/);
      await until(() => once.running.count === 0);
      assert.equal((await send(ask("k"))).status, 201);
      assert.deepEqual([runs, errors.map(String)], [2, ["Error: broken"]]);
    });
  }));

test("leased handler that fails after the beginning of its response can run again", () =>
  withGround(async ({ pool, options }) => {
    const once = expressIdempotency(pool, { ...options, mode: "lease" });
    let runs = 0;
    const handler: RequestHandler = (_request, response) => {
      runs += 1;
      response.status(201).write("part");
      if (runs === 1) throw new Error("the handler fails");
      response.end();
    };
    await onExpress([once, handler], async (send) => {
      const failed = await send(ask("k"));
      assert.deepEqual([failed.status, failed.body], [500, "Error: the handler fails"]);
      assert.deepEqual([(await send(ask("k"))).status, runs], [201, 2]);
    });
  }));

test("handler of Express 4 that throws gives its lease back", () =>
  withGround(async ({ pool, options }) => {
    // @ts-expect-error: the types are those of Express 5.
    const { default: express4 } = (await import("express-4")) as { default: typeof express };
    const once = expressIdempotency(pool, { ...options, mode: "lease" });
    let runs = 0;
    const handler = async (_request: express.Request, response: express.Response) => {
      runs += 1;
      await turn();
      if (runs === 1) throw new Error("the handler fails");
      response.status(201).send("done");
    };
    // As the README says: Express 4 does not look at the promise of a handler.
    const passing: RequestHandler = (request, response, next) => {
      handler(request, response).catch(next);
    };
    await onExpress([once, passing], async (send) => {
      const failed = await send(ask("k"));
      assert.deepEqual([failed.status, failed.body], [500, "Error: the handler fails"]);
      assert.deepEqual([(await send(ask("k"))).status, runs], [201, 2]);
    }, express4);
  }));

/** A stream whose client disconnects after the first piece. */
function interrupted() {
  let release: () => void = () => undefined;
  const released = new Promise<void>((resolve) => (release = resolve));
  let runs = 0;
  let isClosed = false;
  return {
    runs: () => runs,
    source(socket: Socket): Readable {
      socket.once("close", () => (isClosed = true));
      runs += 1;
      async function* pieces() {
        yield "one, ";
        await released;
        yield "two";
      }
      return Readable.from(pieces());
    },
    async disconnect(port: number): Promise<void> {
      await disconnecting(port, ask("k"), () => until(() => runs === 1));
      await until(() => isClosed);
      release();
    },
  };
}

test("leased stream of Fastify is recorded after its client has disconnected", () =>
  withGround(async ({ pool, options }) => {
    const stream = interrupted();
    const app = textual(fastify());
    const once = fastifyIdempotency(pool, { ...options, mode: "lease" });
    app.post("/orders", once, (request, reply) => reply.send(stream.source(request.raw.socket)));
    await onFastify(app, async (send, port) => {
      await stream.disconnect(port);
      await until(() => once.running.count === 0);
      const again = await send(ask("k"));
      assert.deepEqual([again.status, again.body, again.isReplayed], [200, "one, two", true]);
    });
  }));

for (const how of ["pipe", "pipeline"]) {
  test(`leased ${how} of Express runs again after its client has disconnected`, () =>
    withGround(async ({ pool, options }) => {
      const stream = interrupted();
      const once = expressIdempotency(pool, { ...options, mode: "lease" });
      const handler: RequestHandler = async (request, response) => {
        const source = stream.source(request.socket);
        if (how === "pipe") source.pipe(response);
        else await pipeline(source, response);
      };
      await onExpress([once, handler], async (send, port) => {
        await stream.disconnect(port);
        await until(() => once.running.count === 0);
        const again = await send(ask("k"));
        assert.deepEqual([again.status, again.body, again.isReplayed], [200, "one, two", false]);
        assert.equal(stream.runs(), 2);
      });
    }));
}

test("body that a hook of Fastify has decompressed before gets 500", () =>
  withGround(async ({ pool, options, errors }) => {
    const app = textual(fastify());
    app.addHook("preParsing", async (request, _reply, payload) => {
      delete request.headers["content-length"];
      return payload.pipe(new PassThrough());
    });
    const once = fastifyIdempotency(pool, options);
    app.post("/orders", once, (_request, reply) => reply.send("done"));
    await onFastify(app, async (send) => {
      (await send(ask("k"))).assertProblem(500, "failed");
      assert.match(String(errors[0]), /must be used before/);
    });
  }));
