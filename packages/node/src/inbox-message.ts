import type { JsonObject } from "./json.js";
import type { MessageId } from "./message-id.js";
import type { Held } from "./outcomes.js";
import { Content, type Payload } from "./payload.js";
import type { LeaseOptions } from "./statements/leases.js";

/** A message to store first and process later. */
export interface ReceivedMessage {
  readonly id: MessageId;
  readonly destination: string;
  /** A `Uint8Array` is stored as bytes. Any other value is stored as JSON. */
  readonly payload: Payload;
  readonly headers?: JsonObject | undefined;
  /** Messages with the same key are processed in order. */
  readonly key?: string | undefined;
  /** The earliest time of the first attempt. */
  readonly deliverAfter?: Date | undefined;
  readonly type?: string | undefined;
  readonly contentType?: string | undefined;
}

export interface NextOptions extends LeaseOptions {
  /** 1 to 10,000. 1 by default. */
  readonly maxMessages?: number | undefined;
  /** Limits payloads and headers. 16 MiB by default. */
  readonly maxBytes?: number | undefined;
}

/** A stored message that this process has leased. It is the token of its lease. */
export class InboxMessage extends Content implements Held {
  readonly id: string;
  readonly destination: string;
  readonly token: bigint;
  readonly attempt: number;
  readonly lastError: string | null;
  readonly seq: bigint;
  readonly key: string | null;
  readonly type: string | null;
  readonly contentType: string | null;
  readonly headers: JsonObject | null;
  readonly traceparent: string | null;
  readonly receivedAt: Date;
  /** Whether the lease of the previous attempt expired, for example because its process died. */
  readonly leaseExpired: boolean;

  constructor(fields: Omit<InboxMessage, "text" | "json">) {
    super(fields.payload);
    this.id = fields.id;
    this.destination = fields.destination;
    this.token = fields.token;
    this.attempt = fields.attempt;
    this.lastError = fields.lastError;
    this.seq = fields.seq;
    this.key = fields.key;
    this.type = fields.type;
    this.contentType = fields.contentType;
    this.headers = fields.headers;
    this.traceparent = fields.traceparent;
    this.receivedAt = fields.receivedAt;
    this.leaseExpired = fields.leaseExpired;
  }
}
