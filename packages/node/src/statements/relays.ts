/** The statements of relays. */

import { RelayMessage } from "../relay-message.js";
import {
  bigint, boolean, bytes, integer, jsonObject, nothing, nullable, text, time,
} from "./columns.js";
import { FunctionCall, type Statement } from "./statement.js";
import type { LeaseOptions } from "./leases.js";

/** A partition of a relay. Partitions are numbered from 0. */
export interface RelayPartition {
  readonly relay: string;
  readonly partition: number;
}

export interface RelayNextOptions extends LeaseOptions {
  /** 1 to 10,000. 100 by default. */
  readonly maxEffects?: number | undefined;
  /** 16 MiB by default. */
  readonly maxBytes?: number | undefined;
}

export type HandOverOptions = Omit<RelayNextOptions, "leaseMs">;

const RELAY_MESSAGE = {
  token: bigint("token"),
  seq: bigint("seq"),
  messageId: text("message_id"),
  topic: text("topic"),
  key: nullable(text("key")),
  type: nullable(text("type")),
  payload: bytes("payload"),
  contentType: text("content_type"),
  headers: nullable(jsonObject("headers")),
  traceparent: nullable(text("traceparent")),
  recordedAt: time("recorded_at"),
  sourceDestination: nullable(text("source_destination")),
};

export function relayNext(
  from: RelayPartition,
  options: RelayNextOptions,
): Statement<RelayMessage[]> {
  return ofPartition("idem_relay_next", from)
    .option("max_effects", "integer", options.maxEffects)
    .option("lease", "milliseconds", options.leaseMs)
    .option("max_bytes", "integer", options.maxBytes)
    .rows(RELAY_MESSAGE, (row) => new RelayMessage(row));
}

export function relayAck(from: RelayPartition, token: bigint): Statement<undefined> {
  return ofPartition("idem_relay_ack", from).bigint(token).value(nothing);
}

export function relayPark(
  from: RelayPartition,
  token: bigint,
  messageId: string,
  error: string,
): Statement<undefined> {
  return ofPartition("idem_relay_park", from)
    .bigint(token)
    .uuid(messageId)
    .text(error)
    .value(nothing);
}

export function relayExtend(
  from: RelayPartition,
  token: bigint,
  options: LeaseOptions,
): Statement<bigint> {
  return ofPartition("idem_relay_extend", from)
    .bigint(token)
    .option("lease", "milliseconds", options.leaseMs)
    .value(bigint);
}

export function relayWait(timeoutMs: number | undefined): Statement<boolean> {
  return new FunctionCall("idem_relay_wait")
    .option("timeout_ms", "integer", timeoutMs)
    .value(boolean);
}

export function relayPartitions(relay: string): Statement<number> {
  return new FunctionCall("idem_relay_partitions").text(relay).value(integer);
}

export function relayUnpark(relay: string, messageId: string): Statement<boolean> {
  return new FunctionCall("idem_relay_unpark").text(relay).uuid(messageId).value(boolean);
}

export function relayDiscard(relay: string, messageId: string): Statement<boolean> {
  return new FunctionCall("idem_relay_discard").text(relay).uuid(messageId).value(boolean);
}

/** Receives the effects of these topics for the destinations of the same names. */
export function handOver(
  from: RelayPartition,
  topics: readonly string[],
  options: HandOverOptions,
): Statement<number> {
  return new FunctionCall("idem_hand_over")
    .text(from.relay)
    .texts(topics)
    .integer(from.partition)
    .option("max_effects", "integer", options.maxEffects)
    .option("max_bytes", "integer", options.maxBytes)
    .value(integer);
}

function ofPartition(name: string, from: RelayPartition): FunctionCall {
  return new FunctionCall(name).text(from.relay).integer(from.partition);
}
