import type { Run } from "./executors/execute.js";
import type { MessageId } from "./message-id.js";
import { checkOptions } from "./options.js";
import { Content, isBytes, PROPERTIES, type Payload, type Properties } from "./payload.js";
import {
  bigint, boolean, bytes, integer, jsonObject, nullable, text, time, type Values,
} from "./statements/columns.js";
import type { LeaseOptions } from "./statements/leases.js";
import { FunctionCall } from "./statements/statement.js";

/** A message to store first and process later. */
export interface ReceivedMessage extends Properties {
  readonly id: MessageId;
  readonly destination: string;
  /** A `Uint8Array` is stored as bytes. Any other value is stored as JSON. */
  readonly payload: Payload;
  /** The earliest time of the first attempt. */
  readonly deliverAfter?: Date | undefined;
}

/** The members of `ReceivedMessage`. */
const RECEIVED = ["id", "destination", "payload", "deliverAfter", ...PROPERTIES] as const;

export interface NextOptions extends LeaseOptions {
  /** 1 to 10,000. 1 by default. */
  readonly maxMessages?: number | undefined;
  /** Limits payloads and headers. 16 MiB by default. */
  readonly maxBytes?: number | undefined;
}

const INBOX_MESSAGE = {
  token: bigint("token"),
  seq: bigint("seq"),
  id: text("id"),
  key: nullable(text("key")),
  type: nullable(text("type")),
  payload: bytes("payload"),
  contentType: nullable(text("content_type")),
  headers: nullable(jsonObject("headers")),
  traceparent: nullable(text("traceparent")),
  attempt: integer("attempt"),
  receivedAt: time("received_at"),
  lastError: nullable(text("last_error")),
  /** Whether the lease of the previous attempt expired, for example because its process died. */
  leaseExpired: boolean("lease_expired"),
};

/** A stored message that this process has leased. It is the token of its lease. */
export type InboxMessage = Content &
  Values<typeof INBOX_MESSAGE> & { readonly destination: string };

/**
 * Messages that are stored first and processed later. Complete a message with `complete` of `Idem`,
 * or claim it in the transaction of the work.
 */
export class Inbox {
  readonly #run: Run;

  /** @internal */
  constructor(run: Run) {
    this.#run = run;
  }

  /** Stores a message. Returns false if it is already received, dead or claimed. */
  async receive(message: ReceivedMessage): Promise<boolean> {
    checkOptions("receive", message, ...RECEIVED);
    const { id, destination, payload, deliverAfter } = message;
    const name = isBytes(payload) ? "idem_receive_bytes" : "idem_receive";
    const call = FunctionCall.of(name, id, destination).payload(payload).content(message);
    return this.#run(call.option("deliver_after", "time", deliverAfter).value(boolean));
  }

  /** Leases due messages, and returns them in order. */
  async next(destination: string, options: NextOptions = {}): Promise<InboxMessage[]> {
    checkOptions("next", options, "maxMessages", "leaseMs", "maxBytes");
    const call = new FunctionCall("idem_next")
      .text(destination)
      .option("max_messages", "integer", options.maxMessages)
      .option("lease", "milliseconds", options.leaseMs)
      .option("max_bytes", "integer", options.maxBytes);
    return this.#run(
      call.rows(INBOX_MESSAGE, (row) => Content.with({ destination, ...row })),
    );
  }

  /** Waits until `next` can return a message. Returns false after `timeoutMs` (1,000). */
  async wait(destination: string, timeoutMs?: number): Promise<boolean> {
    const call = new FunctionCall("idem_next_wait").text(destination);
    return this.#run(call.option("timeout_ms", "integer", timeoutMs).value(boolean));
  }
}
