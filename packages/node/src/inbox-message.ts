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
  declare readonly id: string;
  declare readonly destination: string;
  declare readonly token: bigint;
  declare readonly attempt: number;
  declare readonly lastError: string | null;
  declare readonly seq: bigint;
  declare readonly key: string | null;
  declare readonly type: string | null;
  declare readonly contentType: string | null;
  declare readonly headers: JsonObject | null;
  declare readonly traceparent: string | null;
  declare readonly receivedAt: Date;
  /** Whether the lease of the previous attempt expired, for example because its process died. */
  declare readonly leaseExpired: boolean;

  constructor(fields: Omit<InboxMessage, "text" | "json">) {
    super(fields.payload);
    Object.assign(this, fields);
  }
}
