/** A service in the process of the test, with its pools. */

import pg from "pg";
import postgres from "postgres";

import { transactions, type Pool } from "../../src/index.js";
import { start, type App } from "./apps.js";
import { Answer, Ask, disconnecting, exchange, untilSettled } from "./client.js";
import { configOf, type Config } from "./config.js";
import { Work } from "./database.js";
import { Handler } from "./handler.js";
import { State } from "./state.js";

interface Opened {
  readonly pool: Pool;
  close(): Promise<void>;
}

/** Opens a pool, whose connections can pass a proxy. They have the name of the service. */
function open(config: Config, passesProxy = true): Opened {
  const { name, poolSize: max } = config;
  const { host, port } = passesProxy ? config : {};
  const where = { ...(host && { host }), ...(port && { port }) };
  if (config.driver === "pg") {
    const pool = new pg.Pool({
      max,
      application_name: name,
      connectionTimeoutMillis: 5000,
      ...where,
    });
    pool.on("error", () => undefined);
    return { pool, close: () => pool.end() };
  }
  const sql = postgres({
    max,
    onnotice: () => undefined,
    fetch_types: false,
    connection: { application_name: name },
    // The proxy recognizes the text of a COMMIT, which a prepared statement does not have.
    ...(host !== undefined && { prepare: false, backoff: () => 0.05 }),
    ...where,
  });
  return { pool: sql, close: () => sql.end({ timeout: 1 }) };
}

/** Starts a service. Writes outside of transactions of requests have connections of their own. */
export async function serve(config: Config, state: State): Promise<App> {
  const own = open(config);
  const direct = open({ ...config, name: `${config.name} direct` }, false);
  const run = transactions(direct.pool);
  const handler = new Handler(config, state, (work) => run(work));
  const app = await start(config, state, own.pool, handler);
  return {
    ...app,
    async close() {
      await app.close();
      await Promise.all([own.close(), direct.close()]);
    },
  };
}

/** A service and its database. */
export class Service {
  readonly state: State;
  readonly work: Work;
  readonly app: App;

  private constructor(state: State, work: Work, app: App) {
    this.state = state;
    this.work = work;
    this.app = app;
  }

  static async start(work: Work, config: Config = work.config): Promise<Service> {
    const state = new State();
    return new Service(state, work, await serve(config, state));
  }

  get runs(): number {
    return this.state.runs;
  }

  send(request: Ask, pieces?: readonly string[]): Promise<Answer> {
    const answer = exchange(this.app.port, request, pieces);
    // If the test fails before it awaits the answer, its error is reported, and not this one.
    answer.catch(() => undefined);
    return answer;
  }

  sendUntilSettled(request: Ask): Promise<Answer> {
    return untilSettled(this.app.port, request);
  }

  disconnecting(request: Ask, reaches: () => Promise<void>): Promise<void> {
    return disconnecting(this.app.port, request, reaches);
  }

  async close(): Promise<void> {
    this.state.releaseAll();
    await this.app.close();
  }
}

/** Executes a test with a service of its own. */
export async function withService(
  observer: pg.Pool,
  options: Partial<Config>,
  test: (service: Service) => Promise<void>,
): Promise<void> {
  const work = await Work.create(configOf(options), observer);
  await withServiceOn(work, work.config, test);
}

/** Executes a test with another service on the same table and destination. */
export async function withServiceOn(
  work: Work,
  config: Config,
  test: (service: Service) => Promise<void>,
): Promise<void> {
  const service = await Service.start(work, config);
  try {
    await test(service);
  } finally {
    await service.close();
  }
}
