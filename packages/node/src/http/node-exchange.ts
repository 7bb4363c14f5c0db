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
      held = new HeldResponse(response, handler.before, limitOf);
      handler.start(context);
      return held.complete;
    },
  });
  switch (result.kind) {
    case "handler":
      held?.send();
      break;
    case "other":
      if (held === undefined) handler.respond(result.response);
      else held.replaceBy(result.response);
      break;
    case "disconnected":
      break;
  }
}
