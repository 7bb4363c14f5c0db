/** The plugin for Fastify 5. */

import type { IncomingMessage, ServerResponse } from "node:http";

import type { Pool } from "../transactions/pool.js";
import { idempotencyOf, type ContextOf, type Idempotency, type Protected } from "./idempotency.js";
import { keysOf, readBody, wasReadBefore } from "./node-body.js";
import { processRequest } from "./node-exchange.js";
import { sendResponse, type HeaderValues } from "./node-response.js";
import type { Mode, Options } from "./options.js";
import { Problem } from "./problem.js";
import type { CompleteResponse } from "./recorded.js";

/** What the plugin needs of a request of Fastify. */
export interface FastifyRequest {
  readonly raw: IncomingMessage;
  readonly method: string;
  readonly originalUrl: string;
  readonly headers: IncomingMessage["headers"];
}

/** What the plugin needs of a reply of Fastify. */
export interface FastifyReply {
  readonly raw: ServerResponse;
  getHeaders(): HeaderValues;
  hijack(): unknown;
}

/** What the plugin needs of a server of Fastify, or of one of its scopes. */
export interface FastifyScope {
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  addHook(name: any, hook: any): unknown;
}

/** A plugin. It protects the routes of the scope in which it is registered. */
export type FastifyIdempotency<X> = Protected<X> & ((scope: FastifyScope) => Promise<void>);

/**
 * Returns a plugin for Fastify that makes each request with an `Idempotency-Key` take effect once.
 *
 * ```ts
 * const once = fastifyIdempotency(pool, { destination: "shop.place-order", scope });
 * await app.register(once);
 * app.post("/orders", async (request, reply) => {
 *   const { client } = once.of(request);
 *   await client.query("INSERT INTO orders (item) VALUES ($1)", [request.body.item]);
 *   return reply.code(201).send({ item: request.body.item });
 * });
 * ```
 *
 * @param pool a `Pool` of node-postgres or the `sql` of postgres.js.
 */
export function fastifyIdempotency<P extends Pool, M extends Mode = "transaction">(
  pool: P,
  options: Options<FastifyRequest, M>,
): FastifyIdempotency<ContextOf<P, M>> {
  const idempotency = idempotencyOf(pool, options);
  const plugin = (scope: FastifyScope) => {
    const hooks = new Hooks(idempotency);
    scope.addHook("preParsing", hooks.preParsing);
    scope.addHook("preHandler", hooks.preHandler);
    return Promise.resolve();
  };
  return Object.assign(plugin, {
    // The hooks belong to the scope in which the plugin is registered, not to one of its own.
    [Symbol.for("skip-override")]: true,
    [Symbol.for("fastify.display-name")]: "idem-pg",
    of: (request: object) => idempotency.of(request),
    find: (request: object) => idempotency.find(request),
    running: idempotency.running,
  });
}

class Hooks<X> {
  readonly #idempotency: Idempotency<FastifyRequest, X>;
  readonly #bodies = new WeakMap<object, Uint8Array>();

  constructor(idempotency: Idempotency<FastifyRequest, X>) {
    this.#idempotency = idempotency;
  }

  /** Keeps the body as it was sent, before Fastify parses it. */
  preParsing = async (
    request: FastifyRequest,
    reply: FastifyReply,
    payload: unknown,
  ): Promise<unknown> => {
    const { rules } = this.#idempotency;
    const { raw, method } = request;
    if (!rules.needsBody(method, keysOf(raw))) return payload;
    try {
      if (payload !== raw) throw wasReadBefore();
      this.#bodies.set(request, await readBody(raw, rules));
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      respond(reply, this.#idempotency.responseOf(error));
    }
    return payload;
  };

  /** Claims the request. Hooks that authenticate the caller come before. */
  preHandler = async (request: FastifyRequest, reply: FastifyReply): Promise<unknown> => {
    const { raw, method, originalUrl: target } = request;
    let id: string | null;
    try {
      id = this.#idempotency.messageIdOf(method, keysOf(raw), request);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      respond(reply, this.#idempotency.responseOf(error));
      return undefined;
    }
    if (id === null) return undefined;
    const body = this.#bodies.get(request) ?? new Uint8Array();
    const head = { id, method, target, body };
    return new Promise((resolve, reject) => {
      processRequest(this.#idempotency, head, reply.raw, {
        before: reply.getHeaders(),
        start: (context) => {
          this.#idempotency.set(request, context);
          resolve(undefined);
        },
        respond: (other) => {
          respond(reply, other);
          resolve(undefined);
        },
      }).catch(reject);
    });
  };
}

/**
 * Sends a response without the hooks `onSend`: a recorded response has passed them before. Fastify
 * runs no handler after `hijack`. After `send` it does, if the hooks `onSend` are asynchronous.
 */
function respond(reply: FastifyReply, response: CompleteResponse): void {
  const before = Object.entries(reply.getHeaders());
  reply.hijack();
  for (const [name, value] of before) {
    if (value !== undefined) reply.raw.setHeader(name, value);
  }
  sendResponse(reply.raw, response);
}
