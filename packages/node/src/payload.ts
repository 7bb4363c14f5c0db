import { textOfJson, type JsonObject } from "./json.js";

/** A payload: bytes, or any value that `JSON.stringify` accepts. */
export type Payload = unknown;

/** What a message has besides its payload. */
export interface Properties {
  readonly headers?: JsonObject | undefined;
  /** Messages with the same key are processed in order. */
  readonly key?: string | undefined;
  readonly type?: string | undefined;
  readonly contentType?: string | undefined;
}

/** The members of `Properties`. */
export const PROPERTIES = ["headers", "key", "type", "contentType"] as const;

/** Returns whether the payload is passed as bytes and not as JSON. */
export function isBytes(payload: Payload): payload is Uint8Array {
  return payload instanceof Uint8Array;
}

/** Returns the payload as bytes: JSON as its UTF-8 text. */
export function bytesOf(payload: Payload): Uint8Array {
  return isBytes(payload) ? payload : Buffer.from(textOfJson(payload));
}

/** Returns the same bytes as a `Buffer`, without a copy. */
export function bufferOf({ buffer, byteOffset, byteLength }: Uint8Array): Buffer {
  return Buffer.from(buffer, byteOffset, byteLength);
}

/** The content of a stored message. */
export class Content {
  /** The bytes of the payload. A JSON payload is its UTF-8 text. */
  readonly payload: Uint8Array;

  constructor(payload: Uint8Array) {
    this.payload = payload;
  }

  /** Returns the content of a message together with its other members. */
  static with<T extends { readonly payload: Uint8Array }>(members: T): Content & T {
    return Object.assign(new Content(members.payload), members);
  }

  /** Returns the payload as text. */
  text(): string {
    return new TextDecoder("utf-8", { fatal: true }).decode(this.payload);
  }

  /** Returns the payload as JSON. */
  json(): unknown {
    return JSON.parse(this.text());
  }
}
