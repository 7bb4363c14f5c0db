/** Notices that the client of `node:http` has disconnected. */

import type { ServerResponse } from "node:http";
import type { Http2ServerResponse } from "node:http2";

/** Aborts when the client disconnects before it has got the response. */
export function disconnectedOf(response: ServerResponse | Http2ServerResponse): AbortSignal {
  const controller = new AbortController();
  const abort = () => {
    controller.abort();
  };
  if (response.destroyed) abort();
  else response.once("close", abort).once("finish", () => response.off("close", abort));
  return controller.signal;
}
