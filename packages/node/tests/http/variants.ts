/** Broken variants of the middleware, which the tests must find. */

import { idem } from "../../src/index.js";
import type { Pool } from "../../src/index.js";
import type { Exchange, Identity, Result, Task } from "../../src/http/exchange.js";
import { expressMiddleware, type ExpressRequest } from "../../src/http/express.js";
import { Idempotency } from "../../src/http/idempotency.js";
import { TransactionAttempt } from "../../src/http/in-transaction.js";
import { Rules, type Mode, type Options } from "../../src/http/options.js";
import type { Recorded } from "../../src/http/recorded.js";
import type { RequestTransaction } from "../../src/http/request-transaction.js";
import { requestOf, stepOf } from "../../src/http/statements.js";
import { allowCommit } from "../../src/statements/commit.js";
import { transactorOf } from "../../src/transactions/index.js";
import type { Client, Transactor } from "../../src/transactions/pool.js";

type Context = RequestTransaction<Client>;

/** Neither claims the request nor records its response. */
class WithoutClaim extends TransactionAttempt<Client> {
  protected override transact() {
    const first = { text: "SELECT 1 AS c1", values: [], decode: () => undefined };
    const beginning = { first, isolation: "default", hasSavepoint: true } as const;
    return this.task.transactor.transact(beginning, (client) => this.handled(client));
  }

  protected override record() {
    return { text: "SELECT 1 AS c1", values: [], decode: () => "recorded" as const };
  }
}

/** Records the response in a transaction of its own, after the commit of the writes. */
class RecordsApart extends TransactionAttempt<Client> {
  #recorded: Recorded | undefined;

  override async result(): Promise<Result> {
    const result = await super.result();
    const recorded = this.#recorded;
    if (recorded === undefined) return result;
    const { transactor, identity } = this.task;
    const step = stepOf(identity);
    await transactor.run(async (client) => {
      await idem(client).journal.beginCall(step, { request: requestOf(identity) });
      await idem(client).journal.finishCall(step, recorded.stored);
    });
    return result;
  }

  protected override record(recorded: Recorded) {
    this.#recorded = recorded;
    return allowCommit("recorded" as const);
  }
}

/** Sends the response before the commit. */
class RespondsFirst extends TransactionAttempt<Client> {
  readonly #early: Promise<Result>;

  constructor(task: Task<Client, Context>) {
    let respond: (result: Result) => void;
    const early = new Promise<Result>((resolve) => (respond = resolve));
    const exchange: Exchange<Context> = {
      disconnected: new AbortController().signal,
      async run(context, limitOf) {
        const response = await task.exchange.run(context, limitOf);
        respond({ kind: "handler" });
        return response;
      },
    };
    super({ ...task, exchange });
    this.#early = early;
  }

  override result(): Promise<Result> {
    const late = super.result();
    late.catch(() => undefined);
    return Promise.race([this.#early, late]);
  }
}

type Variant = new (task: Task<Client, Context>) => TransactionAttempt<Client>;

const VARIANTS: Readonly<Record<string, Variant>> = {
  "without claim": WithoutClaim,
  "records apart": RecordsApart,
  "responds first": RespondsFirst,
};

/** Returns a broken middleware for Express. */
export function variantOf(name: string, pool: Pool, options: Options<ExpressRequest, Mode>) {
  const Variant = VARIANTS[name];
  if (Variant === undefined) throw new Error(`no variant ${name}`);
  const rules = new Rules(options);
  const transactor = transactorOf(pool) as Transactor<Client>;
  const attempt = (identity: Identity, exchange: Exchange<Context>) =>
    new Variant({ rules, transactor, identity, exchange }).result();
  return expressMiddleware(new Idempotency<ExpressRequest, Context>(rules, attempt));
}
