/** The plugin for Fastify 5. */

import type { IncomingMessage } from "node:http";

import type { Pool } from "../transactions/pool.js";
import type { Result } from "./exchange.js";
import { HeldReply, type FastifyReply } from "./fastify-reply.js";
import { idempotencyOf, type ContextOf, type Idempotency, type Protected } from "./idempotency.js";
import { keysOf, readBody, wasReadBefore } from "./node-body.js";
import { disconnectedOf } from "./node-disconnect.js";
import type { Mode, Options } from "./options.js";
import type { CompleteResponse } from "./recorded.js";

/** What the plugin needs of a request of Fastify. */
export interface FastifyRequest {
  readonly raw: IncomingMessage;
  readonly method: string;
  readonly originalUrl: string;
  readonly headers: IncomingMessage["headers"];
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
    scope.addHook("onSend", hooks.onSend);
    return Promise.resolve();
  };
  Object.assign(plugin, {
    // The hooks belong to the scope in which the plugin is registered, not to one of its own.
    [Symbol.for("skip-override")]: true,
    [Symbol.for("fastify.display-name")]: "idem-pg",
  });
  return idempotency.protecting(plugin);
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

  /** Claims the request. Hooks that authenticate the caller come before. */
  preHandler = async (request: FastifyRequest, reply: FastifyReply): Promise<unknown> => {
    const { raw, method, originalUrl: target } = request;
    let id: string | null;
    try {
      id = this.#idempotency.messageIdOf(method, keysOf(raw), request);
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
