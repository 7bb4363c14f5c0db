/** A response as the journal has it. The crate `idem-http` uses the same form. */

import { bufferOf } from "../payload.js";
import { Problem } from "./problem.js";

/** In their order, one entry for each value. Each character of a value is one byte. */
export type Headers = readonly (readonly [name: string, value: string])[];

/** A complete response. */
export interface CompleteResponse {
  readonly status: number;
  readonly headers: Headers;
  readonly body: Uint8Array;
}

/** Statuses of responses that have no body. */
export const WITHOUT_BODY: ReadonlySet<number> = new Set([204, 205, 304]);

/** The header that is `true` in a replayed response. */
const REPLAYED = "idempotency-replayed";

/** Headers that belong to one connection or one moment. They are never recorded. */
const OF_THE_CONNECTION: ReadonlySet<string> = new Set([
  "connection",
  "content-length",
  "date",
  "keep-alive",
  "proxy-authenticate",
  "proxy-authorization",
  "proxy-connection",
  "te",
  "trailer",
  "transfer-encoding",
  "upgrade",
]);

/** The JSON of the journal. */
interface Stored {
  readonly fingerprint: string;
  readonly status: number;
  readonly headers: Headers;
  readonly body_base64: string;
}

/** A recorded response, with the fingerprint of its request in hexadecimal digits. */
export class Recorded {
  readonly stored: Stored;

  private constructor(stored: Stored) {
    this.stored = stored;
  }

  static of(
    fingerprint: Buffer,
    response: CompleteResponse,
    isKept: (name: string) => boolean,
  ): Recorded {
    const lower = response.headers.map(([name, value]) => [name.toLowerCase(), value] as const);
    const dropped = new Set([...OF_THE_CONNECTION, ...namedByConnection(lower)]);
    const headers = lower.filter(([name]) => !dropped.has(name) && isKept(name));
    for (const [name, value] of headers) {
      if (isSendable(name + value)) continue;
      throw new Problem("failed", undefined, new Error(`header ${name} cannot be recorded`));
    }
    return new Recorded({
      fingerprint: fingerprint.toString("hex"),
      status: response.status,
      headers,
      body_base64: bufferOf(response.body).toString("base64"),
    });
  }

  /** Reads the value of the journal. Throws a Problem if it is no recorded response. */
  static from(value: unknown): Recorded {
    if (!isStored(value)) {
      const error = new Error("the journal has an unreadable recorded response");
      throw new Problem("failed", undefined, error);
    }
    return new Recorded(value);
  }

  /** Returns whether the record of another request, or of another attempt, is the same. */
  equals(other: Recorded): boolean {
    const members = ({ stored: { fingerprint, status, headers, body_base64 } }: Recorded) =>
      JSON.stringify([fingerprint, status, headers, body_base64]);
    return members(this) === members(other);
  }

  /** Returns the response to a request with this fingerprint, and a key that was used before. */
  replay(fingerprint: Buffer): CompleteResponse {
    if (this.stored.fingerprint !== fingerprint.toString("hex")) throw new Problem("mismatch");
    return {
      status: this.stored.status,
      headers: [...this.stored.headers, [REPLAYED, "true"]],
      body: Buffer.from(this.stored.body_base64, "base64"),
    };
  }
}

function isStored(value: unknown): value is Stored {
  if (typeof value !== "object" || value === null) return false;
  const { fingerprint, status, headers, body_base64 } = value as Partial<
    Record<keyof Stored, unknown>
  >;
  return (
    typeof fingerprint === "string" &&
    Number.isInteger(status) &&
    (status as number) >= 100 &&
    (status as number) < 1000 &&
    Array.isArray(headers) &&
    headers.every(isHeader) &&
    typeof body_base64 === "string" &&
    /^[A-Za-z0-9+/]*={0,2}$/.test(body_base64)
  );
}

function isHeader(header: unknown): boolean {
  return (
    Array.isArray(header) &&
    header.length === 2 &&
    header.every((text) => typeof text === "string" && isSendable(text))
  );
}

/** Returns whether a header can contain this text. Each character is one byte. */
function isSendable(text: string): boolean {
  return !/[\r\n\0]|[^\0-\xff]/u.test(text);
}

function namedByConnection(headers: Headers): string[] {
  const values = headers.filter(([name]) => name === "connection").map(([, value]) => value);
  return values.flatMap((value) => value.split(",")).map((name) => name.trim().toLowerCase());
}
