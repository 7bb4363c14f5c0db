import type { JsonObject } from "./json.js";
import type { Payload } from "./payload.js";

/** A message of a broker that becomes a dead letter. */
export interface Letter {
  /** Stored as bytes. Any value but a `Uint8Array` is stored as JSON. */
  readonly payload: Payload;
  /** The last error of the message. */
  readonly error: string;
  readonly headers?: JsonObject | undefined;
  readonly key?: string | undefined;
  readonly type?: string | undefined;
  readonly contentType?: string | undefined;
}

/** A message that is not leased. */
export interface RejectedLetter extends Letter {
  /** The queue, subject or topic of the message. */
  readonly source?: string | undefined;
}
