/** The application of the recipes: it charges an account once for each payment. */

import { setTimeout as sleep } from "node:timers/promises";

import type pg from "pg";

import { idem, process as processMessage, transactions } from "idem-pg";

const DESTINATION = "billing.charge";
/** How often a payment is charged that PostgreSQL rejects, and the first pause, which doubles. */
const ATTEMPTS = 5;
const PAUSE_MS = 100;

/** A message of a broker. */
export interface Message {
  /** The id that the producer gave to the payment, if there is one. */
  readonly id: unknown;
  readonly body: Uint8Array;
  /** The queue, subject or topic. */
  readonly source: string;
}

interface Payment {
  readonly account: number;
  readonly cents: number;
}

/** The payment cannot be charged, and another attempt would fail too. */
export class InvalidPayment extends Error {}

/**
 * Charges the payment, or stores the message as a dead letter. After any other error, for example a
 * lost connection, the message must be delivered again. Acknowledge the message after this function
 * has returned.
 */
export async function handle(pool: pg.Pool, message: Message): Promise<void> {
  let id: string | null = null;
  try {
    id = idOf(message.id);
    await repeatedly(pool, id, paymentOf(message.body));
  } catch (error) {
    if (!(error instanceof InvalidPayment) && !isRejection(error)) throw error;
    const letter = { payload: message.body, error: error.message, source: message.source };
    const key = id;
    await transactions(pool)((client) => idem(client).reject(key, DESTINATION, letter));
  }
}

/** Charges the payment. A row that rejects it can have changed until the next attempt. */
async function repeatedly(pool: pg.Pool, id: string, payment: Payment): Promise<void> {
  for (let attempt = 1; attempt < ATTEMPTS; attempt += 1) {
    try {
      await charge(pool, id, payment);
      return;
    } catch (error) {
      if (!isRejection(error)) throw error;
    }
    await sleep(PAUSE_MS * 2 ** (attempt - 1));
  }
  await charge(pool, id, payment);
}

/**
 * Returns whether PostgreSQL rejects the data of this message: SQLSTATE 22 and 23, for example an
 * overdraft that a CHECK forbids, and P0, which functions raise.
 */
function isRejection(error: unknown): error is Error {
  if (!(error instanceof Error)) return false;
  // node-postgres has the SQLSTATE in `code`, and an error of idem in `sqlstate`.
  const { code, sqlstate = code } = error as { code?: unknown; sqlstate?: unknown };
  return typeof sqlstate === "string" && /^(22|23|P0)...$/.test(sqlstate);
}

/** The claim, the charge and the receipt commit together. Does nothing for a duplicate. */
async function charge(pool: pg.Pool, id: string, { account, cents }: Payment): Promise<void> {
  await processMessage(pool, { id, destination: DESTINATION }, async (client) => {
    const { rowCount } = await client.query(
      "UPDATE account SET balance = balance - $1 WHERE id = $2",
      [cents, account],
    );
    if (rowCount !== 1) throw new InvalidPayment(`account ${String(account)} does not exist`);
    return { topic: "receipts", payload: { account, cents } };
  });
}

/**
 * Checks the id. Clients replace bytes that are not UTF-8 by U+FFFD, so different ids would become
 * the same one. PostgreSQL stores no NUL, and idem no id above 1,024 bytes.
 */
function idOf(id: unknown): string {
  if (typeof id !== "string" || id === "") throw new InvalidPayment("the message has no id");
  if (/[\0\uFFFD]/.test(id) || Buffer.byteLength(id) > 1024) {
    throw new InvalidPayment("the message id is not UTF-8, contains a NUL or is too long");
  }
  return id;
}

/** An account or an amount above 2^31 does not fit into its column. */
function paymentOf(body: Uint8Array): Payment {
  const { account, cents } = objectOf(body);
  if (!isInteger(account, 0) || !isInteger(cents, 1)) {
    throw new InvalidPayment("account or cents is not an integer, or is out of range");
  }
  return { account, cents };
}

function objectOf(body: Uint8Array): { account?: unknown; cents?: unknown } {
  try {
    const value: unknown = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(body));
    if (typeof value === "object" && value !== null) return value;
  } catch (error) {
    throw new InvalidPayment(`not a payment: ${String(error)}`);
  }
  throw new InvalidPayment("not a payment");
}

function isInteger(value: unknown, lowest: number): value is number {
  return Number.isInteger(value) && Number(value) >= lowest && Number(value) < 2 ** 31;
}
