/** The payments of the tests. Each has an account of its own. */

import { randomUUID } from "node:crypto";

export const DESTINATION = "billing.charge";
export const PAYMENTS = 50;
export const CENTS = 100;
/** The accounts that are locked, in the middle: from, to. There are as many as workers or more. */
export const HELD = [20, 30] as const;

const UNKNOWN_ACCOUNT = 2 ** 31 - 1;

/** A message as a producer sends it. */
export interface Sent {
  readonly id: string | Uint8Array | null;
  readonly body: Uint8Array;
}

export interface Payment extends Sent {
  readonly id: string;
  readonly account: number;
}

/** Returns a payment for each account. The note makes its body different from all others. */
export function payments(): Payment[] {
  return Array.from({ length: PAYMENTS }, (_, account) => {
    const id = randomUUID();
    return { id, account, body: json({ account, cents: CENTS, note: id }) };
  });
}

/** Accounts and amounts that are no payments. */
export const INVALID: readonly (readonly [unknown, unknown])[] = [
  [1.9, CENTS],
  [true, CENTS],
  ["1", CENTS],
  [null, CENTS],
  [1e20, CENTS],
  [-1, CENTS],
  [[1], CENTS],
  [1, 0.5],
  [1, 0],
  [1, -5],
  [1, true],
  [1, 2 ** 31],
  [UNKNOWN_ACCOUNT, CENTS],
];

const MALFORMED = [
  "",
  "no JSON",
  "[]",
  "null",
  "7",
  '{"account": 1}',
  '{"account": 1, "cents": 1e999}',
  "[".repeat(100_000),
  `{"account": 1, "cents": ${"1".repeat(5000)}}`,
];

/** Ids that are none. Each message has another body. */
export const INVALID_IDS = ["NUL\0", "replaced \uFFFD"];

/** Returns messages that become dead letters, each with an id of its own. */
export function malformed(): (Sent & { id: string })[] {
  const bodies = [
    Buffer.from([0xff]),
    ...MALFORMED.map((text) => Buffer.from(text)),
    ...INVALID.map(([account, cents]) => json({ account, cents })),
  ];
  return bodies.map((body) => ({ id: randomUUID(), body }));
}

export function json(value: unknown): Uint8Array {
  return Buffer.from(JSON.stringify(value));
}
