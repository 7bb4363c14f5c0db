import type { JsonObject } from "./json.js";
import { Content } from "./payload.js";

/** An effect of a batch that a relay has leased. */
export class RelayMessage extends Content {
  /** The token of the batch. */
  readonly token: bigint;
  readonly seq: bigint;
  readonly messageId: string;
  readonly topic: string;
  readonly key: string | null;
  readonly type: string | null;
  readonly contentType: string;
  readonly headers: JsonObject | null;
  readonly traceparent: string | null;
  readonly recordedAt: Date;
  readonly sourceDestination: string | null;

  constructor(fields: Omit<RelayMessage, "text" | "json">) {
    super(fields.payload);
    this.token = fields.token;
    this.seq = fields.seq;
    this.messageId = fields.messageId;
    this.topic = fields.topic;
    this.key = fields.key;
    this.type = fields.type;
    this.contentType = fields.contentType;
    this.headers = fields.headers;
    this.traceparent = fields.traceparent;
    this.recordedAt = fields.recordedAt;
    this.sourceDestination = fields.sourceDestination;
  }
}
