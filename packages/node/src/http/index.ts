/**
 * Middleware that makes each HTTP request with an `Idempotency-Key` take effect once: for Express,
 * Fastify and Hono. docs/http.md has the rules, which are those of the crate `idem-http`.
 *
 * The modules, from the lowest layer to the highest one:
 *
 * - `problem`: the error responses, and which error of the database is which of them.
 * - `key`: the header `Idempotency-Key`.
 * - `scope`: which callers share keys.
 * - `fingerprint`: what distinguishes different requests with the same key.
 * - `recorded`: a response as the journal has it.
 * - `options`: what a middleware protects and records.
 * - `exchange`: a request and its handler, without a framework.
 * - `retry`: repeats what is safe to repeat.
 * - `statements`: the statements of a protected request.
 * - `journal`: looks up the recorded response.
 * - `request-transaction`: the transaction as the handler sees it.
 * - `in-transaction`: processes a request in the transaction that claims it.
 * - `leased`: processes a request under a lease.
 * - `running`: waits for leased requests at a shutdown.
 * - `idempotency`: the decision about a request, and what its handler gets.
 * - `stream`: collects the body of a response.
 * - `node-body`, `node-disconnect`, `node-headers`: requests and responses of `node:http`.
 * - `node-response`, `fastify-reply`: hold the response of a handler back until the commit.
 * - `express`, `hono`: the middleware of each framework. `fastify`: the hooks of a route.
 */

export { expressIdempotency, type ExpressIdempotency, type ExpressRequest } from "./express.js";
export { fastifyIdempotency, type FastifyIdempotency } from "./fastify.js";
export type { FastifyRequest } from "./fastify.js";
export type { FastifyReply } from "./fastify-reply.js";
export { honoIdempotency, type HonoContext, type HonoIdempotency } from "./hono.js";
export type { ContextOf, Protected } from "./idempotency.js";
export type { RequestLease } from "./leased.js";
export type { Mode, Options } from "./options.js";
export type { RequestTransaction } from "./request-transaction.js";
export type { RunningRequests } from "./running.js";
export { Scope } from "./scope.js";
