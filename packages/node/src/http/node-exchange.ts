/** A request of `node:http`, whose handler is started by a framework. */

import type { ServerResponse } from "node:http";

import type { Head, Idempotency } from "./idempotency.js";
import { disconnectedOf, HeldResponse, type HeaderValues } from "./node-response.js";
import type { CompleteResponse } from "./recorded.js";

/** What differs between the frameworks over `node:http`. */
export interface NodeHandler<X> {
  /** The headers that were set before the handler. */
  readonly before: HeaderValues;
  /** Starts the handler, which has this transaction or lease. */
  start(context: X): void;
  /** Sends a response to a request whose handler does not run. */
  respond(response: CompleteResponse): void;
}

/** Processes a protected request, and sends its response. */
export async function processRequest<R, X>(
  idempotency: Idempotency<R, X>,
  { id, body, ...head }: Head & { readonly id: string; readonly body: Uint8Array },
  response: ServerResponse,
  handler: NodeHandler<X>,
): Promise<void> {
  let held: HeldResponse | undefined;
  const result = await idempotency.result(id, head, body, {
    disconnected: disconnectedOf(response),
    run(context, limitOf) {
      held = new HeldResponse(response, handler.before, limitOf, idempotency.rules.givesUpAfterMs);
      handler.start(context);
      return held.complete;
    },
  });
  try {
    if (result.kind === "handler") held?.send();
    else if (result.kind === "other") respond(result.response, held, handler);
  } catch (error) {
    // The handler has run, and its framework must not respond in another way after the commit.
    idempotency.rules.onError(error);
    response.destroy();
  }
}

function respond<X>(
  other: CompleteResponse,
  held: HeldResponse | undefined,
  handler: NodeHandler<X>,
): void {
  if (held === undefined) handler.respond(other);
  else held.replaceBy(other);
}
