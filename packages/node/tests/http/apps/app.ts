/** What the servers of the tests have in common. */

import { once } from "node:events";
import type { Server } from "node:http";
import type { AddressInfo } from "node:net";

import { Scope, type Mode, type Options } from "../../../src/http/index.js";
import type { Pool } from "../../../src/index.js";
import type { Config } from "../config.js";
import type { Handler } from "../handler.js";
import type { State } from "../state.js";

export interface App {
  readonly port: number;
  /** The leased requests that are being processed. */
  readonly running: { readonly count: number; ended(graceMs: number): Promise<number> };
  close(): Promise<void>;
}

export type Start = (config: Config, state: State, pool: Pool, handler: Handler) => Promise<App>;

export const PATHS = ["/orders", "/others"];

/** The limit of the parsers, above that of the middleware. */
export const LARGE = 16 << 20;

export function optionsOf<R>(
  config: Config,
  state: State,
  tenant: (request: R) => string | undefined,
): Options<R, Mode> {
  const { keptHeaders } = config;
  return {
    destination: config.destination,
    scope: config.byTenant ? Scope.by(tenant) : Scope.singleTenant(),
    mode: config.mode,
    methods: config.methods,
    required: config.required,
    requestLimit: config.requestLimit,
    responseLimit: config.responseLimit,
    leaseMs: config.leaseMs,
    keepHeaders: keptHeaders && ((name) => keptHeaders.includes(name)),
    onError: (error) => state.errors.push(error),
  };
}

/** Yields the pieces of a stream, which can end with an error. */
export function* broken<T>(pieces: readonly T[], isBroken: boolean): Generator<T> {
  yield* pieces;
  if (isBroken) throw new Error("the stream is broken");
}

export async function listening(server: Server, running: App["running"]): Promise<App> {
  if (!server.listening) {
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
  }
  return {
    port: (server.address() as AddressInfo).port,
    running,
    async close() {
      server.closeAllConnections();
      server.close();
      await once(server, "close");
    },
  };
}
