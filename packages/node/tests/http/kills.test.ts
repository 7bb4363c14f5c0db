/**
 * A process that is killed at each step of a request, which is then repeated.
 *
 * Invariant: the request takes effect once, and a client that has got a response has got it after
 * its commit.
 */

import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { start, type Program } from "../programs.js";
import { Answer, ask, exchange, untilSettled, type Ask } from "./client.js";
import { configOf, type Config } from "./config.js";
import { openDatabase, Work, WAITING } from "./database.js";
import { withServiceOn } from "./service.js";
import { until } from "./state.js";

const observer = await openDatabase();

/** What the client got: a response or an error. */
type Got = Answer | Error;

/** A service in a process of its own. */
class Process {
  readonly port: number;
  readonly #program: Program;

  private constructor(program: Program) {
    this.#program = program;
    this.port = Number(program.line);
  }

  static async start(config: Config): Promise<Process> {
    return new Process(await start("../http/program", JSON.stringify(config)));
  }

  /** Sends a request, kills the service at a step, and returns what the client got. */
  async killWhile(request: Ask, reaches: () => Promise<void>): Promise<Got> {
    const sent = exchange(this.port, request).catch((error: unknown) => error as Error);
    try {
      await reaches();
    } finally {
      await this.kill();
    }
    return sent;
  }

  kill(): Promise<void> {
    return this.#program.kill();
  }
}

async function withProcess<T>(config: Config, run: (process: Process) => Promise<T>): Promise<T> {
  const process = await Process.start(config);
  try {
    return await run(process);
  } finally {
    await process.kill();
  }
}

const STEPS: Readonly<Record<string, (process: Process, work: Work) => Promise<Got>>> = {
  "the claim": (process, work) =>
    work.tablesLocked("inbox_standard", () =>
      process.killWhile(ask("k"), () => work.untilWaiting()),
    ),
  "the handler": (process, work) =>
    work.locked(() =>
      process.killWhile(ask("k").with("x-lock", work.lock), () => work.untilWaiting()),
    ),
  "the record": (process, work) =>
    work.tablesLocked("call_standard", () =>
      process.killWhile(ask("k"), () => work.untilWaiting()),
    ),
  "the commit": (process, work) =>
    work.locked(() => process.killWhile(ask("k"), () => work.untilWaiting())),
  "the rejected commit": (process, work) =>
    work.locked(() =>
      process.killWhile(ask("k"), async () => {
        await work.untilWaiting();
        assert.equal(await work.terminate(WAITING), 1);
        await work.untilNoSession("state <> 'idle'");
      }),
    ),
  "the response": (process, work) =>
    process.killWhile(ask("k").with("x-pause"), () =>
      until(async () => (await work.rows()) > 0),
    ),
};

/** Returns whether the step ends with a commit: the server executes a COMMIT that was sent. */
function isCommittedAt(step: string, { driver }: Config): boolean {
  // node-postgres sends COMMIT together with the record.
  const isSent = step === "the commit" || (step === "the record" && driver === "pg");
  return isSent || step === "the response";
}

/** Kills a service at a step of its first request. Returns what the client got. */
async function killAt(step: string, work: Work): Promise<Got> {
  await work.waitAtCommit();
  const got = await withProcess(work.config, async (process) => STEPS[step]?.(process, work));
  assert.ok(got !== undefined);
  await work.untilNoSession();
  return got;
}

/** Repeats the request after the kill, and returns the rules that do not hold. */
async function violations(work: Work, got: Got, port: number): Promise<string[]> {
  const isCommitted = (await work.rows("k")) > 0;
  // The process can have sent that the result is not known, before it was killed.
  const hasNone = got instanceof Error || got.status === 503;
  const again = await untilSettled(port, ask("k"));
  const onceMore = await untilSettled(port, ask("k"));
  const rules: Readonly<Record<string, boolean>> = {
    "the client has no response, or the first one":
      hasNone || (got.status === again.status && got.body === again.body),
    "a response has its commit": isCommitted || hasNone,
    "an effect has its response": again.status === 201,
    "a repeated request is a replay": again.isReplayed === isCommitted,
    "a response is recorded": onceMore.isReplayed && onceMore.body === again.body,
    "the request took effect once": (await work.rows("k")) === 2 && (await work.claims()) === 1,
  };
  return Object.keys(rules).filter((rule) => rules[rule] !== true);
}

/** The services that are killed, each at these steps. */
const CASES: readonly (readonly [Partial<Config>, readonly string[]])[] = [
  [{ framework: "express", driver: "pg" }, Object.keys(STEPS)],
  [{ framework: "express", driver: "postgres.js" }, Object.keys(STEPS).slice(1, 5)],
  [{ framework: "fastify", driver: "postgres.js" }, ["the response"]],
  [{ framework: "hono", driver: "pg" }, ["the response"]],
];

/** Each broken variant, the step at which it is killed, and the rule that does not hold then. */
const BROKEN = [
  ["without claim", "the response", "the request took effect once"],
  ["responds first", "the rejected commit", "a response has its commit"],
  ["records apart", "the record", "an effect has its response"],
] as const;

/** At these steps a test locks tables that all services use, so it runs alone. */
const ALONE: ReadonlySet<string> = new Set(["the claim", "the record"]);

for (const isAlone of [false, true]) {
  const name = `killed process${isAlone ? " that waits for a table" : ""}`;
  describe(name, { concurrency: isAlone ? 1 : 4 }, () => {
    for (const [options, steps] of CASES) {
      for (const step of steps.filter((one) => ALONE.has(one) === isAlone)) {
        const kind = `${String(options.framework)} over ${String(options.driver)}`;
        test(`request that is killed at ${step} takes effect once: ${kind}`, async () => {
          const work = await Work.create(configOf(options), observer);
          const got = await killAt(step, work);
          const written = [await work.rows("k"), await work.claims()];
          assert.deepEqual(written, isCommittedAt(step, work.config) ? [2, 1] : [0, 0]);
          await withServiceOn(work, work.config, async (service) => {
            assert.deepEqual(await violations(work, got, service.app.port), []);
          });
        });
      }
    }

    for (const [variant, step, rule] of BROKEN.filter(([, one]) => ALONE.has(one) === isAlone)) {
      test(`broken variant is found: ${variant}`, async () => {
        const work = await Work.create(configOf({ variant }), observer);
        const got = await killAt(step, work);
        await withServiceOn(work, work.config, async (service) => {
          const found = await violations(work, got, service.app.port);
          assert.ok(found.includes(rule), `found only ${String(found)}`);
        });
      });
    }
  });
}

describe("response", { concurrency: 3 }, () => {
  for (const framework of ["express", "fastify", "hono"] as const) {
    test(`response of ${framework} is sent after the commit`, async () => {
      const work = await Work.create(configOf({ framework }), observer);
      await work.waitAtCommit();
      await withServiceOn(work, work.config, async (service) => {
        await work.locked(async (unlock) => {
          let isSent = false;
          const sent = service.send(ask("k")).finally(() => (isSent = true));
          await work.untilWaiting();
          assert.equal(await work.rows("k"), 0);
          (await service.send(ask("k"))).assertProblem(409, "in-progress");
          assert.equal(isSent, false);
          await unlock();
          (await sent).assertRun(201, 1);
          assert.equal(await work.rows("k"), 2);
        });
      });
    });
  }
});

describe("killed process with a lease", { concurrency: 1 }, () => {
  const options = { framework: "express", driver: "pg", mode: "lease", leaseMs: 1000 } as const;
  const request = ask("k").with("x-charge");
  const recordedCharges =
    "SELECT count(*)::int FROM idem_calls('all:k', $1) WHERE step = 'charge' AND state = 'done'";

  /** Kills the service when the completion of the lease waits for the table of the record. */
  async function killAtRecord(work: Work, process: Process): Promise<Got> {
    return work.locked(async (unlock) => {
      const lock = request.with("x-lock", work.lock);
      return process.killWhile(lock, async () => {
        await until(async () => (await waitingSessions(work)) > 0);
        await work.tablesLocked("call_standard", async () => {
          await unlock();
          await until(async () => (await work.rows()) > 0);
          await work.untilWaiting();
          await process.kill();
          await work.terminate(WAITING);
          await work.untilNoSession();
        });
      });
    });
  }

  /** Returns the number of sessions of the handler that wait for a lock. */
  async function waitingSessions({ config, pool }: Work): Promise<number> {
    const { rows } = await pool.query(
      `SELECT FROM pg_stat_activity WHERE application_name = $1 AND ${WAITING}`,
      [`${config.name} direct`],
    );
    return rows.length;
  }

  const steps: Readonly<Record<string, (process: Process, work: Work) => Promise<Got>>> = {
    "the call": (process, work) =>
      process.killWhile(request.with("x-hold"), () =>
        until(async () => (await work.value(recordedCharges, [work.config.destination])) === 1),
      ),
    "the record": (process, work) => killAtRecord(work, process),
    "the response": (process, work) =>
      process.killWhile(request.with("x-pause"), () =>
        until(async () => (await work.claims()) === 1),
      ),
  };
  for (const [step, kill] of Object.entries(steps)) {
    test(`leased request that is killed at ${step} calls once`, async () => {
      const work = await Work.create(configOf(options), observer);
      const got = await withProcess(work.config, (process) => kill(process, work));
      assert.ok(got instanceof Error);
      const isDone = step === "the response";
      assert.equal(await work.claims(), isDone ? 1 : 0);
      await withServiceOn(work, work.config, async (service) => {
        if (!isDone) (await service.send(request)).assertProblem(409, "in-progress");
        const again = await service.sendUntilSettled(request);
        assert.deepEqual([again.status, again.isReplayed], [201, isDone]);
        assert.equal(again.header("x-charges"), isDone ? "1" : "0");
        (await service.send(request)).assertReplayOf(again);
        assert.deepEqual([await work.claims(), service.state.charges], [1, 0]);
      });
    });
  }
});
