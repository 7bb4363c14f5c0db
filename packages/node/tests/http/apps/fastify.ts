/** The server with Fastify. */

import type { AddressInfo } from "node:net";
import { Readable } from "node:stream";

import fastify, { type FastifyReply, type FastifyRequest } from "fastify";

import { fastifyIdempotency } from "../../../src/http/index.js";
import type { Pool } from "../../../src/index.js";
import type { Config } from "../config.js";
import type { Handler, Input } from "../handler.js";
import type { State } from "../state.js";
import { broken, LARGE, optionsOf, PATHS } from "./app.js";

export async function start(config: Config, state: State, pool: Pool, handler: Handler) {
  const app = fastify({ bodyLimit: LARGE });
  const options = optionsOf<FastifyRequest>(config, state, (request) => {
    return request.headers["x-tenant"] as string | undefined;
  });
  const protect = fastifyIdempotency(pool, options);
  app.addContentTypeParser("*", { parseAs: "string" }, (_request, body, done) => {
    done(null, body);
  });
  app.addHook("onRequest", async (request, reply) => {
    state.received += 1;
    reply.header("x-outer", request.headers["x-outer"] ?? "none");
    if (request.headers["x-pause"] !== undefined) reply.raw.end = () => reply.raw;
    await Promise.resolve();
  });
  const respond = async (request: FastifyRequest, reply: FastifyReply) => {
    const input: Input = {
      header: (name) => request.headers[name] as string | undefined,
      body: typeof request.body === "string" ? request.body : "",
      context: protect.find(request),
    };
    const { status, headers, text, pieces, isBroken } = await handler.handle(input);
    reply.code(status).headers(headers);
    const late = input.header("x-late");
    if (late !== undefined) {
      void reply.send(text);
      await handler.late(input, late);
      return reply;
    }
    return reply.send(pieces === undefined ? text : Readable.from(broken(pieces, isBroken)));
  };
  for (const url of PATHS) app.all(url, protect, respond);
  await app.listen({ port: 0, host: "127.0.0.1" });
  return {
    port: (app.server.address() as AddressInfo).port,
    running: protect.running,
    async close() {
      app.server.closeAllConnections();
      await app.close();
    },
  };
}
