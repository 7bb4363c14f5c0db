/** The hooks of a route of Fastify 5. */

import type { IncomingHttpHeaders } from "node:http";

import type { Pool } from "../transactions/pool.js";
import type { Result } from "./exchange.js";
import { HeldReply, type FastifyReply } from "./fastify-reply.js";
import { idempotencyOf, type ContextOf, type Idempotency, type Protected } from "./idempotency.js";
import { keysOf, readBody, wasReadBefore, type NodeRequest } from "./node-body.js";
import { disconnectedOf } from "./node-disconnect.js";
import type { Mode, Options } from "./options.js";
import type { CompleteResponse } from "./recorded.js";

/** What the hooks need of a request of Fastify. */
export interface FastifyRequest {
  readonly raw: NodeRequest;
  readonly method: string;
  readonly originalUrl: string;
  readonly headers: IncomingHttpHeaders;
}

/** Options of a route, which protect this route and no other one. */
export type FastifyIdempotency<X> = Protected<X> & {
  readonly preParsing: (
    request: FastifyRequest,
    reply: FastifyReply,
    payload: unknown,
  ) => Promise<unknown>;
  readonly preHandler: (request: FastifyRequest, reply: FastifyReply) => Promise<unknown>;
  readonly onSend: (
    request: FastifyRequest,
    reply: FastifyReply,
    payload: unknown,
  ) => Promise<unknown>;
};

/**
 * Returns options for the routes of Fastify that make each request with an `Idempotency-Key` take
 * effect once.
 *
 * ```ts
 * const once = fastifyIdempotency(pool, { destination: "shop.place-order", scope });
 * app.post("/orders", once, async (request, reply) => {
 *   const { client } = once.of(request);
 *   await client.query("INSERT INTO orders (item) VALUES ($1)", [request.body.item]);
 *   return reply.code(201).send({ item: request.body.item });
 * });
 * ```
 *
 * Other options of the route stand beside them: `{ ...once, schema }`. Hooks of the server or the
 * scope run before those of a route, so authenticate there, or with
 * `{ ...once, preHandler: [authenticate, once.preHandler] }`.
 *
 * @param pool a `Pool` of node-postgres or the `sql` of postgres.js.
 */
export function fastifyIdempotency<P extends Pool, M extends Mode = "transaction">(
  pool: P,
  options: Options<FastifyRequest, M>,
): FastifyIdempotency<ContextOf<P, M>> {
  const idempotency = idempotencyOf(pool, options);
  return idempotency.protecting(new Hooks(idempotency));
}

class Hooks<X> {
  readonly #idempotency: Idempotency<FastifyRequest, X>;
  readonly #bodies = new WeakMap<object, Uint8Array>();
  readonly #held = new WeakMap<object, HeldReply>();

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
      return this.#reject(request, reply, error);
    }
    return payload;
  };

  /** Claims the request. */
  preHandler = async (request: FastifyRequest, reply: FastifyReply): Promise<unknown> => {
    const { raw, method, originalUrl: target } = request;
    let id: string | null;
    try {
      id = this.#idempotency.rules.messageIdOf(method, keysOf(raw), request);
    } catch (error) {
      return this.#reject(request, reply, error);
    }
    if (id === null) return undefined;
    const body = this.#bodies.get(request) ?? new Uint8Array();
    return new Promise<void>((start) => {
      this.#hold(request, reply, (response) =>
        this.#idempotency.result(id, { method, target }, body, {
          disconnected: disconnectedOf(reply.raw),
          run: (context) => {
            this.#idempotency.set(request, context);
            start();
            return response;
          },
        }),
      );
    });
  };

  /** Sends a response after its commit only. */
  onSend = (request: FastifyRequest, _: FastifyReply, payload: unknown): Promise<unknown> => {
    return this.#held.get(request)?.sent(payload) ?? Promise.resolve(payload);
  };

  /** Sends the response of a Problem. Fastify runs no handler, because the hook does not end. */
  #reject(request: FastifyRequest, reply: FastifyReply, error: unknown): Promise<never> {
    const response = this.#idempotency.responseOf(error);
    this.#hold(request, reply, () => Promise.resolve({ kind: "other", response }));
    return new Promise(() => undefined);
  }

  #hold(
    request: FastifyRequest,
    reply: FastifyReply,
    decide: (response: Promise<CompleteResponse>) => Promise<Result>,
  ): void {
    this.#held.set(request, new HeldReply(reply, this.#idempotency.rules.limitOf, decide));
  }
}
