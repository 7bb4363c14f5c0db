/** The response of a handler over `node:http`, which the client gets after the commit only. */

import type { OutgoingHttpHeaders, ServerResponse } from "node:http";

import { changedHeaders, grouped } from "./node-headers.js";
import type { LimitOf } from "./options.js";
import { Problem } from "./problem.js";
import { WITHOUT_BODY, type CompleteResponse } from "./recorded.js";

/** Replaces the members with which a handler writes, and sends the response itself. */
export class HeldResponse {
  /** The response that the handler has ended. Fails with a Problem if it exceeds its limit. */
  readonly complete: Promise<CompleteResponse>;
  readonly #response: ServerResponse;
  readonly #limitOf: LimitOf;
  readonly #before: OutgoingHttpHeaders;
  readonly #members: [string, unknown][];
  #resolve!: (response: CompleteResponse) => void;
  #reject!: (reason: unknown) => void;
  #hasHead = false;
  #body: { status: number; chunks: Buffer[]; size: number } = { status: 0, chunks: [], size: 0 };
  /** Set when the handler has ended its response, or another one was sent. */
  #ended: CompleteResponse | undefined;

  /** Headers that were set before are not recorded. */
  constructor(response: ServerResponse, limitOf: LimitOf) {
    this.#response = response;
    this.#limitOf = limitOf;
    this.#before = response.getHeaders();
    this.complete = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    const destroy = response.destroy.bind(response);
    const held = {
      write: this.#write,
      end: this.#end,
      writeHead: this.#writeHead,
      flushHeaders: () => undefined,
      destroy: (error?: Error) => {
        this.#reject(error ?? new Error("the handler has destroyed its response"));
        return destroy(error);
      },
    };
    this.#members = Object.keys(held).map((name) => [name, Reflect.get(response, name)]);
    Object.assign(response, held);
    // A stream that is piped to a closed response stops, and never ends it.
    response.on("unpipe", () => {
      if (response.destroyed) this.#reject(new Error("the client has disconnected from a stream"));
    });
  }

  /** Sends the response of the handler, or another one in its place. */
  send(other?: CompleteResponse): void {
    const response = this.#response;
    Object.assign(response, Object.fromEntries(this.#members));
    if (other !== undefined) response.statusMessage = "";
    const before = other === undefined ? {} : this.#before;
    this.#ended = other ?? this.#ended;
    if (this.#ended !== undefined) sendResponse(response, this.#ended, before);
    // A handler that has not ended can still write, which Node.js would report as an error.
    Object.assign(response, { write: this.#write, end: this.#end });
  }

  readonly #write = (...given: unknown[]): boolean => {
    const { chunk, encoding, callback } = argumentsOf(given);
    this.#add(chunk, encoding);
    if (callback !== undefined) process.nextTick(callback);
    return true;
  };

  readonly #end = (...given: unknown[]): ServerResponse => {
    const { chunk, encoding, callback } = argumentsOf(given);
    this.#add(chunk, encoding);
    if (callback !== undefined) {
      if (this.#response.writableEnded) process.nextTick(callback);
      else this.#response.once("finish", callback);
    }
    if (this.#ended !== undefined) return this.#response;
    const { status, chunks } = this.#body;
    const headers = this.#response.getHeaders();
    this.#ended = { status, headers: changedHeaders(headers), body: Buffer.concat(chunks) };
    this.#resolve({ ...this.#ended, headers: changedHeaders(headers, this.#before) });
    return this.#response;
  };

  /** `writeHead(status, [reason], [headers])`. */
  readonly #writeHead = (status: unknown, ...given: unknown[]): ServerResponse => {
    this.#hasHead = true;
    this.#response.statusCode = Number(status);
    if (typeof given[0] === "string") this.#response.statusMessage = given[0];
    const headers = given.find((argument) => typeof argument === "object");
    setHeaders(this.#response, grouped(headers));
    return this.#response;
  };

  #add(chunk: unknown, encoding: BufferEncoding | undefined): void {
    if (this.#ended !== undefined) return;
    // As Node.js does, calls a `writeHead` that other middleware may have replaced.
    if (!this.#hasHead) this.#response.writeHead(this.#response.statusCode);
    const { statusCode: status } = this.#response;
    // The response of an error handler replaces one that has begun.
    if (status !== this.#body.status) this.#body = { status, chunks: [], size: 0 };
    if (chunk === undefined || chunk === null) return;
    const bytes =
      typeof chunk === "string" ? Buffer.from(chunk, encoding) : Buffer.from(chunk as Uint8Array);
    this.#body.size += bytes.length;
    if (this.#body.size <= (this.#limitOf(status) ?? Infinity)) this.#body.chunks.push(bytes);
    else this.#reject(new Problem("response-too-large"));
  }
}

/** Sends a complete response. Headers that were set before stay, if it does not replace them. */
export function sendResponse(
  response: ServerResponse,
  { status, headers, body }: CompleteResponse,
  before: OutgoingHttpHeaders = response.getHeaders(),
): void {
  const all = new Map([...grouped(before), ...grouped(headers)]);
  const hasLength = !["transfer-encoding", "trailer"].some((name) => all.has(name));
  if (hasLength && !WITHOUT_BODY.has(status)) all.set("content-length", String(body.length));
  const { sendDate } = response;
  for (const name of response.getHeaderNames()) if (!all.has(name)) response.removeHeader(name);
  // Node.js sends no date after the removal of one.
  response.sendDate = sendDate;
  setHeaders(response, all);
  response.statusCode = status;
  response.end(body);
}

/** Sets the headers that are different. The names of the others keep their letters. */
function setHeaders(response: ServerResponse, headers: ReadonlyMap<string, string | string[]>) {
  for (const [name, values] of headers) {
    if (String(response.getHeader(name)) !== String(values)) response.setHeader(name, values);
  }
}

/** The arguments of `write` and `end`: (chunk, [encoding], [callback]), all optional. */
function argumentsOf(given: unknown[]) {
  const [chunk, encoding] = given.filter((argument) => typeof argument !== "function");
  return {
    chunk,
    encoding: typeof encoding === "string" ? (encoding as BufferEncoding) : undefined,
    callback: given.find((argument) => typeof argument === "function") as (() => void) | undefined,
  };
}
