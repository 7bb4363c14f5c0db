/**
 * The middleware for Express 5 and 4, and for other frameworks over `node:http` whose middleware
 * gets `(request, response, next)`.
 */

import type { IncomingMessage, ServerResponse } from "node:http";

import type { Pool } from "../transactions/pool.js";
import { idempotencyOf, type ContextOf, type Idempotency, type Protected } from "./idempotency.js";
import { keysOf, readBody } from "./node-body.js";
import { disconnectedOf } from "./node-disconnect.js";
import { HeldResponse, sendResponse } from "./node-response.js";
import type { Mode, Options } from "./options.js";
import { Problem } from "./problem.js";

/** What the middleware needs of a request of Express. */
export interface ExpressRequest extends IncomingMessage {
  /** The target of the request, also in a router with a prefix. */
  readonly originalUrl?: string;
  get?(name: string): string | undefined;
}

type Next = (error?: unknown) => void;

/** A middleware, which must be used before the parsers of bodies. */
export type ExpressIdempotency<X> = Protected<X> &
  ((request: ExpressRequest, response: ServerResponse, next: Next) => void);

/**
 * Returns a middleware for Express that makes each request with an `Idempotency-Key` take effect
 * once.
 *
 * ```ts
 * const once = expressIdempotency(pool, { destination: "shop.place-order", scope });
 * app.post("/orders", once, express.json(), async (request, response) => {
 *   const { client } = once.of(request);
 *   await client.query("INSERT INTO orders (item) VALUES ($1)", [request.body.item]);
 *   response.status(201).json({ item: request.body.item });
 * });
 * ```
 *
 * @param pool a `Pool` of node-postgres or the `sql` of postgres.js.
 */
export function expressIdempotency<P extends Pool, M extends Mode = "transaction">(
  pool: P,
  options: Options<ExpressRequest, M>,
): ExpressIdempotency<ContextOf<P, M>> {
  return expressMiddleware(idempotencyOf(pool, options));
}

/** Returns the middleware that processes requests in this way. */
export function expressMiddleware<X>(
  idempotency: Idempotency<ExpressRequest, X>,
): ExpressIdempotency<X> {
  return idempotency.protecting(
    (request: ExpressRequest, response: ServerResponse, next: Next) => {
      handle(idempotency, request, response, next).catch(next);
    },
  );
}

async function handle<X>(
  idempotency: Idempotency<ExpressRequest, X>,
  request: ExpressRequest,
  response: ServerResponse,
  next: Next,
): Promise<void> {
  const { method = "" } = request;
  let id;
  let body;
  try {
    id = idempotency.rules.messageIdOf(method, keysOf(request), request);
    if (id !== null) body = await readBody(request, idempotency.rules);
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    sendResponse(response, idempotency.responseOf(error));
    return;
  }
  if (id === null || body === undefined) {
    next();
    return;
  }
  const target = request.originalUrl ?? request.url ?? "/";
  let held: HeldResponse | undefined;
  const result = await idempotency.result(id, { method, target }, body, {
    disconnected: disconnectedOf(response),
    run(context, limitOf) {
      held = new HeldResponse(response, limitOf);
      idempotency.set(request, context);
      next();
      return held.complete;
    },
  });
  if (result.kind === "disconnected") return;
  const other = result.kind === "other" ? result.response : undefined;
  try {
    if (held !== undefined) held.send(other);
    else if (other !== undefined) sendResponse(response, other);
  } catch (error) {
    // The handler has run, and its framework must not respond in another way after the commit.
    idempotency.rules.onError(error);
    response.destroy();
  }
}
