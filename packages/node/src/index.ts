/** idem for Node.js: process each message once, in the transaction that you have. */

export { CallFailedError, CallNotDone, CallRefused, type CallFailure } from "./call-errors.js";
export type { CallContext, Found, OnceOptions, OnUnknown, UnknownCall } from "./calls.js";
export type { Effect, Effects, OutgoingMessage, RecordedEffect } from "./effects.js";
export {
  CommitUnknownError,
  IdemError,
  LeaseLostError,
  UnexpectedResultError,
  type IdemErrorOptions,
} from "./errors.js";
export type { Executor } from "./executors/index.js";
export type { DrizzleTransaction, KnexTransaction } from "./executors/libraries.js";
export type { KyselyTransaction, PostgresTransaction } from "./executors/libraries.js";
export type { PrismaTransaction, TypeOrmManager } from "./executors/libraries.js";
export type { QueryExecutor } from "./executors/query.js";
export { idem, type Idem } from "./idem.js";
export type { Inbox, InboxMessage, NextOptions, ReceivedMessage } from "./inbox.js";
export type { BeginCallOptions, BegunCall, FailCallOptions } from "./journal.js";
export type { Journal, JournalEntry, Step } from "./journal.js";
export type { JsonObject, Jsonify } from "./json.js";
export { lease, type Lease, type LeaseRequest, type NotLeased } from "./lease.js";
export type { Letter, RejectedLetter } from "./letter.js";
export type { MessageId } from "./message-id.js";
export type { ClaimOutcome, Held, LeaseOutcome, LeaseToken, Settlement } from "./outcomes.js";
export type { Payload } from "./payload.js";
export { process, type Handler, type Processed } from "./process.js";
export type { ProcessMessage, ProcessOptions } from "./process.js";
export type { ClaimOptions } from "./statements/claims.js";
export type { LeaseOptions, ReleaseOptions } from "./statements/leases.js";
export { ToolBusyError, ToolFailedError } from "./tool-errors.js";
export { toolCallKey } from "./tool-keys.js";
export { once, type OnceTool, type Tool, type ToolOptions } from "./tools.js";
export { transactions, type TransactionOptions, type Transactions } from "./transactions/index.js";
export type { ClientOf, Isolation, PgPool, Pool, PostgresSql } from "./transactions/pool.js";
