/** The response of a handler over `node:http`, which the client gets after the commit only. */

import type { ServerResponse } from "node:http";

import type { LimitOf } from "./options.js";
import { Problem } from "./problem.js";
import { WITHOUT_BODY, type CompleteResponse, type Headers } from "./recorded.js";

/** The values of headers, as `getHeaders` of a response returns them. */
export type HeaderValues = Readonly<Record<string, HeaderValue | undefined>>;
type HeaderValue = number | string | readonly string[];

type Callback = (error?: Error | null) => void;

interface ResponseHead {
  readonly status: number;
  /** The headers that the handler has set. */
  readonly headers: Headers;
}

/** Members of a response that the handler uses instead of its own. */
const REPLACED = [
  "write",
  "end",
  "writeHead",
  "flushHeaders",
  "setHeader",
  "appendHeader",
  "removeHeader",
  "headersSent",
  "writableEnded",
  // Middleware that compresses responses looks at this instead of `headersSent`.
  "_header",
  "destroy",
  "emit",
  "destroyed",
  "_closed",
] as const;

/** Holds back what a handler writes. */
export class HeldResponse {
  /** The complete response. Fails with a Problem if its body exceeds the limit of its status. */
  readonly complete: Promise<CompleteResponse>;
  readonly #response: ServerResponse;
  readonly #before: HeaderValues;
  readonly #limitOf: LimitOf;
  readonly #own: ReadonlyMap<string, PropertyDescriptor | undefined>;
  readonly #chunks: Buffer[] = [];
  readonly #givesUpAfterMs: number | null;
  #size = 0;
  #isClosed = false;
  #timer: NodeJS.Timeout | undefined;
  #head: ResponseHead | undefined;
  #hasEnded = false;
  #resolve: (response: CompleteResponse) => void = ignore;
  #reject: (problem: Problem) => void = ignore;

  /**
   * `before` are the headers that were set before the handler. They are not recorded. With
   * `givesUpAfterMs` the handler does not notice a disconnect. After a disconnect, a response that
   * has begun fails if nothing is written to it for this time.
   */
  constructor(
    response: ServerResponse,
    before: HeaderValues,
    limitOf: LimitOf,
    givesUpAfterMs: number | null,
  ) {
    this.#givesUpAfterMs = givesUpAfterMs;
    this.#response = response;
    this.#before = { ...before };
    this.#limitOf = limitOf;
    this.complete = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    this.#own = new Map(
      REPLACED.map((name) => [name, Object.getOwnPropertyDescriptor(response, name)]),
    );
    this.#replaceMembers();
    if (givesUpAfterMs !== null) this.#hideDisconnect();
  }

  /** Sends the response of the handler. */
  send(): void {
    this.#restoreMembers();
    if (this.#head !== undefined) this.#response.statusCode = this.#head.status;
    this.#response.end(Buffer.concat(this.#chunks));
  }

  /** Sends another response in its place. */
  replaceBy(other: CompleteResponse): void {
    this.#restoreMembers();
    for (const name of this.#response.getHeaderNames()) this.#response.removeHeader(name);
    // It was not sent any more if the handler had set the date.
    this.#response.sendDate = true;
    for (const [name, value] of Object.entries(this.#before)) {
      if (value !== undefined) this.#response.setHeader(name, value);
    }
    sendResponse(this.#response, other);
    this.#ignoreWrites();
  }

  #replaceMembers(): void {
    this.#define({
      write: { value: (...parameters: unknown[]) => this.#write(parameters) },
      end: { value: (...parameters: unknown[]) => this.#end(parameters) },
      writeHead: { value: (...parameters: unknown[]) => this.#writeHead(parameters) },
      flushHeaders: { value: () => void this.#begin() },
      setHeader: { value: this.#unlessFixed("setHeader") },
      appendHeader: { value: this.#unlessFixed("appendHeader") },
      removeHeader: { value: this.#unlessFixed("removeHeader") },
      headersSent: { get: () => this.#head !== undefined },
      writableEnded: { get: () => this.#hasEnded },
      destroy: { value: this.#destroyed() },
      _header: { get: () => (this.#head === undefined ? null : "held"), set: ignore },
    });
  }

  /** A stream that is piped to a closed response would stop, and the handler would not end it. */
  #hideDisconnect(): void {
    const emit = this.#response.emit.bind(this.#response) as (...given: unknown[]) => boolean;
    const close = () => {
      this.#isClosed = true;
      this.#watch();
      return true;
    };
    this.#define({
      emit: { value: (...given: unknown[]) => (given[0] === "close" ? close() : emit(...given)) },
      destroyed: { get: () => false, set: ignore },
      _closed: { get: () => false, set: ignore },
    });
  }

  /** Express reports nothing about a handler that fails after the beginning of its response. */
  #watch(): void {
    clearTimeout(this.#timer);
    if (!this.#isClosed || this.#head === undefined || this.#hasEnded) return;
    const fail = () => {
      this.#fail(new Error("the response does not end, and its client has disconnected"));
    };
    this.#timer = setTimeout(fail, this.#givesUpAfterMs ?? 0);
  }

  #fail(cause: unknown): void {
    this.#reject(new Problem("failed", undefined, cause));
  }

  #destroyed() {
    const destroy = this.#response.destroy.bind(this.#response);
    return (error?: Error) => {
      if (!this.#hasEnded) this.#fail(error ?? new Error("the handler has destroyed its response"));
      return destroy(error);
    };
  }

  #define(members: Partial<Record<(typeof REPLACED)[number], PropertyDescriptor>>): void {
    for (const [name, member] of Object.entries(members)) {
      const writable = "value" in member ? { writable: true } : {};
      Object.defineProperty(this.#response, name, { ...member, ...writable, configurable: true });
    }
  }

  #unlessFixed(name: "setHeader" | "appendHeader" | "removeHeader") {
    // Responses of HTTP/2 have no `appendHeader` in old versions of Node.js.
    if (!(name in this.#response)) return undefined;
    const method = this.#response[name].bind(this.#response) as (...given: unknown[]) => unknown;
    return (...parameters: unknown[]) => {
      if (this.#head !== undefined) throw headersSent();
      return method(...parameters);
    };
  }

  /**
   * The handler can go on to write, which Node.js reports after the end as an error. A stream that
   * it pipes ends only if it can write all.
   */
  #ignoreWrites(): void {
    const ignored = (parameters: unknown[]) => {
      const { callback } = argumentsOf(parameters);
      if (callback !== undefined) process.nextTick(callback);
    };
    this.#define({
      write: { value: (...parameters: unknown[]) => (ignored(parameters), true) },
      end: { value: (...parameters: unknown[]) => (ignored(parameters), this.#response) },
    });
  }

  #restoreMembers(): void {
    for (const [name, own] of this.#own) {
      if (own === undefined) Reflect.deleteProperty(this.#response, name);
      else Object.defineProperty(this.#response, name, own);
    }
    clearTimeout(this.#timer);
    if (!this.#isClosed) return;
    this.#isClosed = false;
    Object.assign(this.#response, { destroyed: true, _closed: true });
    this.#response.emit("close");
  }

  #write(parameters: unknown[]): boolean {
    const { chunk, encoding, callback } = argumentsOf(parameters);
    if (this.#hasEnded) return false;
    this.#add(chunk, encoding);
    if (callback !== undefined) process.nextTick(callback);
    return true;
  }

  #end(parameters: unknown[]): ServerResponse {
    const { chunk, encoding, callback } = argumentsOf(parameters);
    if (this.#hasEnded) return this.#response;
    this.#add(chunk, encoding);
    this.#hasEnded = true;
    this.#watch();
    if (callback !== undefined) this.#response.once("finish", callback);
    this.#resolve({ ...this.#begin(), body: Buffer.concat(this.#chunks) });
    return this.#response;
  }

  #add(chunk: unknown, encoding: BufferEncoding | undefined): void {
    const { status } = this.#begin();
    this.#watch();
    if (chunk === undefined || chunk === null) return;
    const bytes =
      typeof chunk === "string" ? Buffer.from(chunk, encoding) : Buffer.from(chunk as Uint8Array);
    this.#size += bytes.length;
    if (this.#size <= (this.#limitOf(status) ?? Infinity)) this.#chunks.push(bytes);
    else this.#reject(new Problem("response-too-large"));
  }

  /** `writeHead(status, [reason], [headers])`. */
  #writeHead(parameters: unknown[]): ServerResponse {
    if (this.#head !== undefined) throw headersSent();
    const [status, second, third] = parameters;
    this.#response.statusCode = Number(status);
    if (typeof second === "string") this.#response.statusMessage = second;
    const headers = typeof second === "string" ? third : (third ?? second);
    for (const [name, values] of grouped(headers)) this.#response.setHeader(name, values);
    checkHead(this.#response);
    this.#fixHead();
    return this.#response;
  }

  /** As Node.js does, calls a `writeHead` that other middleware may have replaced. */
  #begin(): ResponseHead {
    if (this.#head === undefined) this.#response.writeHead(this.#response.statusCode);
    return this.#fixHead();
  }

  /** From now on, the status and the headers are those of the response. */
  #fixHead(): ResponseHead {
    this.#head ??= { status: this.#response.statusCode, headers: this.#headers() };
    return this.#head;
  }

  #headers(): [string, string][] {
    const set = Object.entries(this.#response.getHeaders());
    const own = set.filter(([name, value]) => !isSame(value, this.#before[name]));
    return own.flatMap(([name, value]) =>
      [value ?? []].flat().map((one): [string, string] => [name, String(one)]),
    );
  }
}

/** Sends a complete response. Headers that were set before stay, if it does not replace them. */
export function sendResponse(response: ServerResponse, other: CompleteResponse): void {
  response.statusCode = other.status;
  if (hasMessage(response)) response.statusMessage = "";
  for (const [name, values] of grouped(other.headers)) response.setHeader(name, values);
  if (!WITHOUT_BODY.has(other.status)) response.setHeader("content-length", other.body.length);
  response.end(other.body);
}

/** Aborts when the client disconnects before it has got the response. */
export function disconnectedOf(response: ServerResponse): AbortSignal {
  const controller = new AbortController();
  const check = () => {
    controller.abort();
  };
  if (response.destroyed) check();
  else response.once("close", check).once("finish", () => response.off("close", check));
  return controller.signal;
}

/** Returns the values of each name. Headers are an object, or an array of names and values. */
function grouped(headers: unknown): Map<string, string[] | string> {
  const pairs: [string, unknown][] = [];
  if (Array.isArray(headers)) {
    const flat = flatOf(headers);
    for (let n = 0; n + 1 < flat.length; n += 2) pairs.push([String(flat[n]), flat[n + 1]]);
  } else {
    pairs.push(...Object.entries(headers ?? {}));
  }
  const groups = new Map<string, string[]>();
  for (const [name, value] of pairs) {
    if (value === undefined) continue;
    const key = name.toLowerCase();
    groups.set(key, [...(groups.get(key) ?? []), ...[value].flat().map(String)]);
  }
  return new Map([...groups].map(([name, all]) => [name, all.length === 1 ? String(all[0]) : all]));
}

/** Returns the names and values of an array that can consist of pairs. */
function flatOf(headers: readonly unknown[]): readonly unknown[] {
  return Array.isArray(headers[0]) ? headers.flat() : headers;
}

/** The arguments of `write` and `end`: (chunk, [encoding], [callback]), all optional. */
function argumentsOf(parameters: unknown[]) {
  const callback = parameters.find((parameter) => typeof parameter === "function");
  const [chunk, encoding] = parameters.filter((parameter) => parameter !== callback);
  return {
    chunk,
    encoding: typeof encoding === "string" ? (encoding as BufferEncoding) : undefined,
    callback: callback as Callback | undefined,
  };
}

/** Throws the errors that Node.js would throw when it sends the head, which is after the commit. */
function checkHead(response: ServerResponse): void {
  const { statusCode } = response;
  if (!Number.isInteger(statusCode) || statusCode < 100 || statusCode > 999) {
    const error = new RangeError(`Invalid status code: ${String(statusCode)}`);
    throw Object.assign(error, { code: "ERR_HTTP_INVALID_STATUS_CODE" });
  }
  if (hasMessage(response) && /[^\t\x20-\x7e\x80-\xff]/.test(response.statusMessage)) {
    const error = new TypeError("Invalid character in statusMessage");
    throw Object.assign(error, { code: "ERR_INVALID_CHAR" });
  }
}

/** Returns whether the text of the status is set. HTTP/2 has none, and prints a warning. */
function hasMessage(response: ServerResponse): boolean {
  return Object.hasOwn(response, "statusMessage");
}

function isSame(value: unknown, other: unknown): boolean {
  return JSON.stringify(value) === JSON.stringify(other);
}

/** The error of Node.js for a change of headers that were sent. */
function headersSent(): Error {
  const error = new Error("Cannot change headers after they are sent to the client");
  return Object.assign(error, { code: "ERR_HTTP_HEADERS_SENT" });
}

function ignore(): void {
  // Replaced by the functions of the promise.
}
