/** The body of a request of `node:http`. */

import type { IncomingMessage } from "node:http";
import type { Http2ServerRequest } from "node:http2";

import { HEADER } from "./key.js";
import { Problem } from "./problem.js";

/** The rules of a middleware that a body must obey. */
interface Limit {
  checkRequestSize(size: number): void;
}

/** A request of `node:http`, or of `node:http2`, which has nearly the same members. */
export type NodeRequest = IncomingMessage | Http2ServerRequest;

/** Returns the values of all headers `Idempotency-Key`. */
export function keysOf({ rawHeaders }: NodeRequest): string[] {
  return rawHeaders.filter((_, n) => n % 2 === 1 && rawHeaders[n - 1]?.toLowerCase() === HEADER);
}

/**
 * Reads the body, and gives it back to the stream, so that parsers can read it again. Throws a
 * Problem if it is too large, ends early or was read before.
 */
export async function readBody(request: NodeRequest, limit: Limit): Promise<Buffer> {
  // Without a body the stream is left alone: a parser that finds it at its end would fail.
  if (!hasBody(request)) return Buffer.alloc(0);
  limit.checkRequestSize(Number(request.headers["content-length"] ?? "0"));
  if (request.readableDidRead) throw wasReadBefore();
  const body = await read(request, limit).catch((error: unknown) => {
    // The rest is dropped, so that the connection can be used again.
    request.resume();
    throw error;
  });
  // The stream notices at the end of the turn that nothing listens to `readable` any more.
  await new Promise((resolve) => setImmediate(resolve));
  return body;
}

async function read(request: NodeRequest, limit: Limit): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let size = 0;
  for (;;) {
    const chunk = request.read() as Buffer | null;
    if (chunk !== null) {
      chunks.push(chunk);
      size += chunk.length;
      limit.checkRequestSize(size);
    } else if (isComplete(request)) {
      break;
    } else {
      await untilReadable(request);
    }
  }
  // In the turn in which the end was read, so before the stream emits `end`. Without a body the
  // stream ends, so a parser must not read it.
  const body = Buffer.concat(chunks);
  if (size > 0) request.unshift(body);
  else delete request.headers["transfer-encoding"];
  return body;
}

/** The problem of a body that a parser, or a hook that decompresses it, has taken. */
export function wasReadBefore(): Problem {
  return new Problem(
    "failed",
    "the service has read the body before it looked at the key",
    new Error("the middleware must be used before what reads, parses or decompresses bodies"),
  );
}

function hasBody(request: NodeRequest): boolean {
  // A body of HTTP/2 needs neither of the headers.
  if (isHttp2(request)) return !request.stream.endAfterHeaders;
  const { "content-length": length = "0", "transfer-encoding": encoding } = request.headers;
  return encoding !== undefined || Number(length) > 0;
}

/** Returns whether the whole body has arrived. With HTTP/2, `complete` is set after `end`. */
function isComplete(request: NodeRequest): boolean {
  return isHttp2(request) ? request.stream.readableEnded : request.complete;
}

function isHttp2(request: NodeRequest): request is Http2ServerRequest {
  return request.httpVersionMajor > 1;
}

function untilReadable(request: NodeRequest): Promise<void> {
  return new Promise((resolve, reject) => {
    const settle = (settled: () => void) => () => {
      request.off("readable", onReadable).off("close", onClose).off("error", onClose);
      settled();
    };
    const onReadable = settle(resolve);
    const onClose = settle(() => {
      reject(new Problem("unreadable-request"));
    });
    if (request.destroyed) onClose();
    else request.on("readable", onReadable).on("close", onClose).on("error", onClose);
  });
}
