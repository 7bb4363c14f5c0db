/** The response of a handler of Fastify, which the client gets after the commit only. */

import type { OutgoingHttpHeader, ServerResponse } from "node:http";
import type { Http2ServerResponse } from "node:http2";

import type { Result } from "./exchange.js";
import { changedHeaders, grouped, type OutgoingHeaders } from "./node-headers.js";
import type { LimitOf } from "./options.js";
import { Problem } from "./problem.js";
import type { CompleteResponse } from "./recorded.js";
import { collected } from "./stream.js";

/** What the hooks need of a reply of Fastify. */
export interface FastifyReply {
  readonly raw: ServerResponse | Http2ServerResponse;
  readonly statusCode: number;
  getHeaders(): Record<string, OutgoingHttpHeader | undefined>;
  header(name: string, value: unknown): unknown;
  removeHeader(name: string): unknown;
  send(payload?: unknown): unknown;
  hijack(): unknown;
}

/** What a handler has sent: what is recorded, and what the client gets. */
interface Held {
  readonly recorded: CompleteResponse;
  readonly headers: OutgoingHeaders;
  readonly payload: unknown;
}

/** Waits in the hook `onSend` for the result of the request. */
export class HeldReply {
  readonly #reply: FastifyReply;
  readonly #before: OutgoingHeaders;
  readonly #limitOf: LimitOf;
  readonly #result: Promise<Result>;
  #resolve!: (response: Promise<CompleteResponse>) => void;
  #isSending = false;
  #isDecided = false;

  /** `decide` gets the response of the handler. Headers that were set before are not recorded. */
  constructor(
    reply: FastifyReply,
    limitOf: LimitOf,
    decide: (response: Promise<CompleteResponse>) => Promise<Result>,
  ) {
    this.#reply = reply;
    this.#before = reply.getHeaders();
    this.#limitOf = limitOf;
    this.#result = decide(new Promise((resolve) => (this.#resolve = resolve)));
    reply.hijack = () => {
      throw new Error("a protected request cannot be hijacked: its response is held back");
    };
    reply.raw.once("finish", () => {
      if (this.#isSending) return;
      this.#resolve(Promise.reject(new Error("the response has bypassed the hook onSend")));
    });
    this.#sendOther().catch(() => reply.raw.destroy());
  }

  /** Returns the payload that the client gets instead. */
  async sent(payload: unknown): Promise<unknown> {
    if (this.#isSending) {
      // The error of a response that cannot be sent after its commit must not replace it.
      if (this.#isDecided) this.#reply.raw.destroy();
      return new Promise(() => undefined);
    }
    this.#isSending = true;
    const held = this.#hold(payload);
    this.#resolve(held.then(({ recorded }) => recorded));
    const result = await this.#result;
    this.#isDecided = true;
    if (result.kind === "disconnected") return payload;
    if (result.kind === "handler") {
      const { recorded, headers, payload: own } = await held;
      this.#setHead(recorded.status, Object.entries(headers));
      return own;
    }
    const { status, headers, body } = result.response;
    this.#setHead(status, [...Object.entries(this.#before), ...grouped(headers)]);
    return body.length === 0 ? null : Buffer.from(body);
  }

  /** Sends a response that is none of a handler, or that cannot wait for its handler. */
  async #sendOther(): Promise<void> {
    const { kind } = await this.#result;
    if (kind === "other" && !this.#isSending) this.#reply.send();
  }

  /** Collects what the handler has sent. A response that is not recorded can stay a stream. */
  async #hold(payload: unknown): Promise<Held> {
    const reply = this.#reply;
    if (payload instanceof Response) {
      reply.raw.statusCode = payload.status;
      for (const [name, value] of payload.headers) reply.header(name, value);
      payload = payload.body;
    }
    const { statusCode: status } = reply;
    const headers = reply.getHeaders();
    const limit = this.#limitOf(status);
    if (limit === null) {
      return { recorded: { status, headers: [], body: Buffer.alloc(0) }, headers, payload };
    }
    // The body gets a length.
    delete headers["transfer-encoding"];
    const body = await collected(chunksOf(payload), (size) => {
      if (size > limit) throw new Problem("response-too-large");
    });
    const recorded = { status, headers: changedHeaders(headers, this.#before), body };
    return { recorded, headers, payload: body.length === 0 ? null : body };
  }

  #setHead(status: number, headers: Iterable<readonly [string, unknown]>): void {
    const reply = this.#reply;
    const { sendDate } = reply.raw;
    for (const name of Object.keys(reply.getHeaders())) reply.removeHeader(name);
    // Node.js sends no date after the removal of one.
    reply.raw.sendDate = sendDate;
    for (const [name, value] of headers) if (value !== undefined) reply.header(name, value);
    reply.raw.statusCode = status;
  }
}

function chunksOf(payload: unknown): AsyncIterable<Buffer> | Iterable<string | Uint8Array> {
  if (payload === undefined || payload === null) return [];
  if (typeof payload === "string" || payload instanceof Uint8Array) return [payload];
  return payload as AsyncIterable<Buffer>;
}
