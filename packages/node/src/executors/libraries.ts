/** How the libraries execute statements: postgres.js, Drizzle, Knex, Kysely, Prisma and TypeORM. */

import type { Parameter, Row } from "../statements/statement.js";
import { hasMethods, member, type Library } from "./execute.js";
import { query } from "./query.js";

/**
 * postgres.js: the `sql` that the callback of `sql.begin` gets. The members of type `never` exclude
 * the `sql` that has the connections.
 */
export interface PostgresTransaction {
  // postgres.js declares the parameters with its own types, so they cannot be named here.
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  unsafe(text: string, values?: any[], options?: { prepare: boolean }): PromiseLike<unknown[]>;
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  savepoint(...parameters: any[]): unknown;
  readonly begin?: never;
}

/**
 * Keeps the statement with its connection, unless the user has set `prepare: false`. Otherwise
 * postgres.js asks the server for the types of the parameters each time.
 */
export const PREPARED = { prepare: true } as const;

const postgres: Library<PostgresTransaction> = {
  isTransaction: (candidate) => hasMethods(candidate, "unsafe", "savepoint"),
  isPool: (candidate) => hasMethods(candidate, "unsafe", "begin"),
  execute: async (on, text, values) => (await on.unsafe(text, values, PREPARED)) as Row[],
};

/** Drizzle: the `tx` that the callback of `db.transaction` gets. `$client` excludes `db`. */
export interface DrizzleTransaction {
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  execute(query: any): PromiseLike<unknown>;
  rollback(): never;
  setTransaction(config: object): Promise<void>;
  readonly $client?: never;
}

const drizzle: Library<DrizzleTransaction> = {
  isTransaction: (candidate) => hasMethods(candidate, "execute", "rollback", "setTransaction"),
  isPool: (candidate) =>
    hasMethods(candidate, "execute", "transaction", "insert") && !drizzle.isTransaction(candidate),
  execute: async (on, text, values) => rowsOf(await on.execute(statement(text, values))),
};

/** Returns what `execute` needs of the SQL objects of Drizzle, which cannot be imported here. */
function statement(text: string, params: Parameter[]): object {
  return { getSQL: () => ({ toQuery: () => ({ sql: text, params }) }) };
}

/** Drizzle returns the result of its driver: that of node-postgres, or the array of postgres.js. */
function rowsOf(result: unknown): Row[] {
  return (Array.isArray(result) ? result : (result as { rows: unknown }).rows) as Row[];
}

/** Knex: the `trx` that `knex.transaction` passes or returns. `isCompleted` excludes `knex`. */
export interface KnexTransaction {
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  raw(sql: string, bindings: any): PromiseLike<unknown>;
  isCompleted(): boolean;
}

const knex: Library<KnexTransaction> = {
  isTransaction: (candidate) =>
    hasMethods(candidate, "raw", "isCompleted") && member(candidate, "isTransaction") === true,
  isPool: (candidate) =>
    hasMethods(candidate, "raw", "transaction") && !knex.isTransaction(candidate),
  async execute(on, text, values) {
    const { sql, bindings } = withQuestionMarks(text, values);
    return ((await on.raw(sql, bindings)) as { rows: Row[] }).rows;
  },
};

/** Returns the statement with ? for $1, and the values in the order of the placeholders. */
function withQuestionMarks(text: string, values: readonly Parameter[]) {
  const bindings: Parameter[] = [];
  const sql = text.replace(/\$(\d+)/g, (_, number: string) => {
    bindings.push(values[Number(number) - 1] ?? null);
    return "?";
  });
  return { sql, bindings };
}

/** Kysely: the `trx` that `db.transaction()` passes. `isTransaction` excludes `db`. */
export interface KyselyTransaction {
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  executeQuery(query: any): Promise<{ rows: unknown[] }>;
  readonly isTransaction: true;
}

const kysely: Library<KyselyTransaction> = {
  isTransaction: (candidate) =>
    hasMethods(candidate, "executeQuery") && member(candidate, "isTransaction") === true,
  isPool: (candidate) =>
    hasMethods(candidate, "executeQuery") && !kysely.isTransaction(candidate),
  execute: async (on, text, values) =>
    (await on.executeQuery(compiled(text, values))).rows as Row[],
};

/** Returns the object that `CompiledQuery.raw` of Kysely creates. */
function compiled(sql: string, parameters: Parameter[]): object {
  const node = { kind: "RawNode", sqlFragments: [sql], parameters: [] };
  return { sql, parameters, query: node, queryId: { queryId: "idem-pg" } };
}

/** Prisma: the `tx` that the callback of `$transaction` gets. `$connect` excludes `prisma`. */
export interface PrismaTransaction {
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  $queryRawUnsafe(query: string, ...values: any[]): PromiseLike<any>;
  readonly $connect?: never;
}

const prisma: Library<PrismaTransaction> = {
  isTransaction: (candidate) => hasMethods(candidate, "$queryRawUnsafe"),
  isPool: (candidate) => hasMethods(candidate, "$queryRawUnsafe", "$connect"),
  execute: async (on, text, values) => (await on.$queryRawUnsafe(text, ...values)) as Row[],
};

/**
 * TypeORM: the `EntityManager` that the callback of `dataSource.transaction` gets. TypeScript
 * cannot exclude `dataSource.manager`, which has the same type, so it is an error at run time only.
 */
export interface TypeOrmManager {
  query(text: string, values?: unknown[]): Promise<unknown>;
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  getRepository(target: any): unknown;
  readonly queryRunner?: object;
  /** Excludes `DataSource`. */
  readonly createQueryRunner?: never;
}

const typeorm: Library<TypeOrmManager> = {
  isTransaction: (candidate) => isManager(candidate) && hasRunner(candidate),
  isPool: (candidate) =>
    hasMethods(candidate, "query", "createQueryRunner") ||
    (isManager(candidate) && !hasRunner(candidate)),
  execute: async (on, text, values) => (await on.query(text, values)) as Row[],
};

function isManager(candidate: object): boolean {
  return (
    hasMethods(candidate, "query", "getRepository") && !hasMethods(candidate, "createQueryRunner")
  );
}

function hasRunner(candidate: object): boolean {
  return member(candidate, "queryRunner") !== undefined;
}

/** `query` is the last one, because objects of other libraries have a method `query` too. */
export const LIBRARIES: readonly Library<never>[] = [
  postgres, drizzle, knex, kysely, prisma, typeorm, query,
];
