/** The server with Hono. */

import type { Server } from "node:http";

import { serve, type HttpBindings } from "@hono/node-server";
import { Hono, type Context } from "hono";

import { honoIdempotency } from "../../../src/http/index.js";
import type { Pool } from "../../../src/index.js";
import type { Config } from "../config.js";
import type { Handler, Input } from "../handler.js";
import type { State } from "../state.js";
import { broken, listening, optionsOf, PATHS } from "./app.js";

export async function start(config: Config, state: State, pool: Pool, handler: Handler) {
  const app = new Hono<{ Bindings: HttpBindings }>();
  type C = Context<{ Bindings: HttpBindings }>;
  const options = optionsOf<C>(config, state, (c) => c.req.header("x-tenant"));
  const protect = honoIdempotency(pool, options);
  app.use(async (c, next) => {
    state.received += 1;
    c.header("x-outer", c.req.header("x-outer") ?? "none");
    if (c.req.header("x-parsed") !== undefined) await c.req.text();
    await next();
    if (c.req.header("x-pause") !== undefined) await new Promise(() => undefined);
  });
  app.use(protect);
  const respond = async (c: C) => {
    const input: Input = {
      header: (name) => c.req.header(name),
      body: await c.req.text(),
      context: protect.find(c),
    };
    const { status, headers, text, pieces, isBroken } = await handler.handle(input);
    const whole = status === 204 ? null : text;
    if (pieces === undefined) return c.newResponse(whole, status as 200, { ...headers });
    const bytes = broken(pieces.map((piece) => Buffer.from(piece)), isBroken);
    // `Readable.toWeb` of Node.js 18 throws when its stream is destroyed.
    const stream = new ReadableStream({
      pull(controller) {
        const next = bytes.next();
        if (next.done === true) controller.close();
        else controller.enqueue(next.value);
      },
    });
    return c.newResponse(stream, status as 200, { ...headers });
  };
  for (const path of PATHS) app.all(path, respond);
  app.onError((error, c) => c.text(String(error), 500));
  const server = serve({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" }) as Server;
  return listening(server, protect.running);
}
