/**
 * The types of the middleware for HTTP. `tsc` compiles this file, and nothing executes it: a line
 * after `@ts-expect-error` that compiles is an error.
 */

import type { Express, Request } from "express";
import type { FastifyInstance, FastifyRequest } from "fastify";
import type { Context, Hono } from "hono";
import type pg from "pg";
import type postgres from "postgres";

import {
  expressIdempotency,
  fastifyIdempotency,
  honoIdempotency,
  Scope,
} from "../../src/http/index.js";

interface Env {
  Variables: { user: string };
}

export interface Objects {
  pool: pg.Pool;
  sql: postgres.Sql;
  client: pg.PoolClient;
  express: Express;
  fastify: FastifyInstance;
  hono: Hono<Env>;
}

export function frameworks({ pool, sql, express, fastify, hono }: Objects): void {
  const destination = "d";
  const scope = Scope.singleTenant();

  const inExpress = expressIdempotency(pool, { destination, scope });
  express.use(inExpress);
  express.post("/", inExpress, async (request) => {
    const client: pg.ClientBase = inExpress.of(request).client;
    await client.query("SELECT 1");
    // @ts-expect-error: a transaction has no external calls.
    inExpress.of(request).once;
  });

  const inFastify = fastifyIdempotency(sql, { destination, scope, mode: "transaction" });
  fastify.post("/", inFastify, async (request) => {
    const client: postgres.TransactionSql = inFastify.of(request).client;
    await client`SELECT 1`;
  });
  fastify.post<{ Body: { item: string } }>("/", { ...inFastify, schema: {} }, (request) => {
    const item: string = request.body.item;
    return item;
  });
  // @ts-expect-error: a plugin would also protect the login.
  void fastify.register(inFastify);

  const inHono = honoIdempotency(sql, { destination, scope, mode: "lease" });
  hono.post("/", inHono, (c) => {
    inHono.of(c).signal.throwIfAborted();
    // @ts-expect-error: a leased request has no transaction.
    inHono.of(c).client;
    return c.text("");
  });
}

export function scopes({ pool }: Objects): void {
  const destination = "d";
  expressIdempotency(pool, { destination, scope: Scope.by((request) => request.method) });
  expressIdempotency(pool, { destination, scope: Scope.by((request: Request) => request.ip) });
  fastifyIdempotency(pool, {
    destination,
    scope: Scope.by((request: FastifyRequest) => request.ip),
  });
  honoIdempotency(pool, { destination, scope: Scope.by((c: Context<Env>) => c.get("user")) });

  // @ts-expect-error: callers would share keys.
  expressIdempotency(pool, { destination });
  // @ts-expect-error: the destination is missing.
  expressIdempotency(pool, { scope: Scope.singleTenant() });
  // @ts-expect-error: the function is no scope.
  expressIdempotency(pool, { destination, scope: () => "a" });
  // @ts-expect-error: an asynchronous function returns no name.
  Scope.by(async () => "a");
  // @ts-expect-error: use a function of the class.
  new Scope();
}

export function pools({ client }: Objects): void {
  // @ts-expect-error: a connection is no pool.
  expressIdempotency(client, { destination: "d", scope: Scope.singleTenant() });
}
