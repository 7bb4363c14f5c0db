import { PROPERTIES, type Payload, type Properties } from "./payload.js";

/** A message of a broker that becomes a dead letter. */
export interface Letter extends Properties {
  /** Stored as bytes. Any value but a `Uint8Array` is stored as JSON. */
  readonly payload: Payload;
  /** The last error of the message. */
  readonly error: string;
}

/** The members of `Letter`. */
export const LETTER = ["payload", "error", ...PROPERTIES] as const;

/** A message that is not leased. */
export interface RejectedLetter extends Letter {
  /** The queue, subject or topic of the message. */
  readonly source?: string | undefined;
}
