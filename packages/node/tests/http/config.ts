/** The configuration of a service of the tests. It can be passed to another process as JSON. */

import { randomUUID } from "node:crypto";

import type { Mode } from "../../src/http/options.js";

export type Framework = "express" | "express 4" | "fastify" | "hono";
export type Driver = "pg" | "postgres.js";

export interface Config {
  readonly framework: Framework;
  readonly driver: Driver;
  readonly mode: Mode;
  /** The application_name of the connections. */
  readonly name: string;
  readonly destination: string;
  /** The table of the writes. It has no primary key, so that duplicate inserts are visible. */
  readonly table: string;
  readonly byTenant: boolean;
  readonly required: boolean;
  readonly methods: readonly string[];
  readonly requestLimit: number;
  readonly responseLimit: number;
  readonly leaseMs: number;
  readonly poolSize: number;
  readonly keptHeaders?: readonly string[];
  /** Where the pool of the middleware connects to. The handler uses the server itself. */
  readonly host?: string;
  readonly port?: number;
  /** How a request is processed: see variants.ts. */
  readonly variant: string;
}

export function configOf(options: Partial<Config>): Config {
  const unique = randomUUID().slice(0, 13).replace("-", "");
  return {
    framework: "express",
    driver: "pg",
    mode: "transaction",
    name: `http-${unique}`,
    destination: `http.tests.${unique}`,
    table: `http_work_${unique}`,
    byTenant: false,
    required: true,
    methods: ["POST", "PATCH"],
    requestLimit: 1 << 20,
    responseLimit: 1 << 20,
    leaseMs: 30_000,
    poolSize: 8,
    variant: "sound",
    ...options,
  };
}

/** The services for which all cases run. Each framework has both modes and both drivers. */
export const KINDS: Readonly<Record<string, Partial<Config>>> = {
  "Express": { framework: "express", driver: "pg" },
  "Fastify": { framework: "fastify", driver: "postgres.js" },
  "Hono": { framework: "hono", driver: "pg" },
  "Express with a lease": { framework: "express", driver: "postgres.js", mode: "lease" },
  "Fastify with a lease": { framework: "fastify", driver: "pg", mode: "lease" },
  "Hono with a lease": { framework: "hono", driver: "postgres.js", mode: "lease" },
};

/** The services for which the cases run that depend on the driver. */
export const DRIVERS: Readonly<Record<string, Partial<Config>>> = {
  "Express over pg": { framework: "express", driver: "pg" },
  "Express over postgres.js": { framework: "express", driver: "postgres.js" },
  "Fastify over pg": { framework: "fastify", driver: "pg" },
  "Hono over postgres.js": { framework: "hono", driver: "postgres.js" },
};
