/** The middleware for Hono 4, whose requests and responses are those of fetch. */

import type { Pool } from "../transactions/pool.js";
import { idempotencyOf, type ContextOf, type Idempotency, type Protected } from "./idempotency.js";
import { HEADER } from "./key.js";
import type { LimitOf, Mode, Options } from "./options.js";
import { Problem } from "./problem.js";
import { WITHOUT_BODY, type CompleteResponse } from "./recorded.js";
import { collected } from "./stream.js";

/** What the middleware needs of a context of Hono. */
export interface HonoContext {
  readonly req: {
    readonly method: string;
    raw: Request;
    header(name: string): string | undefined;
  };
  res: Response;
  /** With the server of `@hono/node-server`, the request of `node:http`. */
  readonly env: unknown;
  body(data: null): Response;
}

/** A middleware, which must be used before anything that reads the body. */
export type HonoIdempotency<X> = Protected<X> &
  ((c: HonoContext, next: () => Promise<void>) => Promise<Response | undefined>);

const EMPTY = new Uint8Array();

/** A status that logs use for a client that has disconnected. */
const CLOSED: CompleteResponse = { status: 499, headers: [], body: EMPTY };

/**
 * Returns a middleware for Hono that makes each request with an `Idempotency-Key` take effect once.
 *
 * ```ts
 * const once = honoIdempotency(pool, { destination: "shop.place-order", scope });
 * app.post("/orders", once, async (c) => {
 *   const { item } = await c.req.json();
 *   await once.of(c).client.query("INSERT INTO orders (item) VALUES ($1)", [item]);
 *   return c.json({ item }, 201);
 * });
 * ```
 *
 * @param pool a `Pool` of node-postgres or the `sql` of postgres.js.
 */
export function honoIdempotency<P extends Pool, M extends Mode = "transaction">(
  pool: P,
  options: Options<HonoContext, M>,
): HonoIdempotency<ContextOf<P, M>> {
  const idempotency = idempotencyOf(pool, options);
  return idempotency.protecting((c: HonoContext, next: () => Promise<void>) =>
    handle(idempotency, c, next),
  );
}

async function handle<X>(
  idempotency: Idempotency<HonoContext, X>,
  c: HonoContext,
  next: () => Promise<void>,
): Promise<Response | undefined> {
  const { method } = c.req;
  const { signal: disconnected } = c.req.raw;
  const target = targetOf(c);
  // To read `c.res` would create it, and its headers would then replace those of the handler.
  const before = new Headers(c.body(null).headers);
  const key = c.req.header(HEADER);
  let id;
  let body;
  try {
    // Values of one name are joined with a comma, which is not valid in a key.
    id = idempotency.rules.messageIdOf(method, key === undefined ? [] : [key], c);
    if (id !== null) body = await readBody(c, idempotency.rules);
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    replace(c, before, idempotency.responseOf(error));
    return undefined;
  }
  if (id === null || body === undefined) {
    await next();
    return undefined;
  }
  const result = await idempotency.result(id, { method, target }, body, {
    disconnected,
    async run(context, limitOf) {
      idempotency.set(c, context);
      await next();
      return complete(c, before, limitOf);
    },
  });
  if (result.kind === "other") replace(c, before, result.response);
  // Hono reports an error if there is no response, also if there is no client that could get it.
  if (result.kind === "disconnected") replace(c, before, CLOSED);
  return undefined;
}

/** Returns the target as the client has sent it, if the server has it. Hono normalizes its URL. */
function targetOf({ env, req }: HonoContext): string {
  const { incoming } = (env ?? {}) as { readonly incoming?: { readonly url?: unknown } };
  return typeof incoming?.url === "string" ? incoming.url : req.raw.url;
}

/** Reads the body of a request, and gives it back. */
async function readBody(
  c: HonoContext,
  limit: { checkRequestSize(size: number): void },
): Promise<Uint8Array> {
  const { raw } = c.req;
  if (raw.bodyUsed) {
    throw new Problem(
      "failed",
      "the service has read the body before it looked at the key",
      new Error("the middleware must be used before anything that reads the body"),
    );
  }
  limit.checkRequestSize(Number(raw.headers.get("content-length") ?? "0"));
  if (raw.body === null) return EMPTY;
  const body = await collected(raw.body, (size) => {
    limit.checkRequestSize(size);
  }).catch((error: unknown) => {
    throw error instanceof Problem ? error : new Problem("unreadable-request");
  });
  const { method, headers, signal } = raw;
  c.req.raw = new Request(raw.url, { method, headers, signal, body });
  return body;
}

/** Returns the response of the handler, and lets its body be sent later. */
async function complete(
  c: HonoContext,
  before: Headers,
  limitOf: LimitOf,
): Promise<CompleteResponse> {
  const { status, statusText, headers, body } = c.res;
  const limit = limitOf(status);
  // A response that is not recorded is sent as a stream.
  if (limit === null) return { status, headers: [], body: EMPTY };
  const own = [...headers].filter(([name, value]) => before.get(name) !== value);
  if (body === null) return { status, headers: own, body: EMPTY };
  const bytes = await collected(body, (size) => {
    if (size > limit) throw new Problem("response-too-large");
  });
  set(c, new Response(bytes, { status, statusText, headers }));
  return { status, headers: own, body: bytes };
}

/** Sets another response, with the headers that were set before. */
function replace(c: HonoContext, before: Headers, other: CompleteResponse): void {
  const headers = new Headers(before);
  for (const [name] of other.headers) headers.delete(name);
  for (const [name, value] of other.headers) headers.append(name, value);
  const body = WITHOUT_BODY.has(other.status) ? null : Uint8Array.from(other.body);
  set(c, new Response(body, { status: other.status, headers }));
}

function set(c: HonoContext, response: Response): void {
  // Hono would merge the headers of the response before into the new one.
  (c as { res: Response | undefined }).res = undefined;
  c.res = response;
}
