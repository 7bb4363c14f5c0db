/** Statements of node-postgres that share a round trip. */

import { canPrepare, nameOf, preparedError } from "../executors/prepared.js";
import { bufferOf } from "../payload.js";
import type { Parameter, Row } from "../statements/statement.js";
import type { PgClient } from "./pg-fence.js";

/** A statement. It is prepared if it has values, also if they are none. */
export interface Part {
  readonly text: string;
  readonly values?: readonly Parameter[];
}

/** What a `Client` offers to queries, such as those of `pg-cursor`. */
interface Connection {
  readonly stream: { cork(): void; uncork(): void };
  readonly parsedStatements: Readonly<Record<string, string | undefined>>;
  parse(statement: { readonly name: string; readonly text: string }): void;
  bind(statement: { readonly statement: string; readonly values: readonly unknown[] }): void;
  execute(portal: object): void;
  sync(): void;
}

/**
 * Executes statements, and returns the rows of each. After an error the server skips the others.
 * The rows of `SELECT` have the columns c1, c2…
 */
export async function executeAll(client: PgClient, parts: readonly Part[]): Promise<Row[][]> {
  // In its pipeline mode node-postgres sends only queries of its own.
  if (client.pipeline === true || !canPrepare(client)) return executeTexts(client, parts);
  return new Promise((resolve, reject) => {
    const batch = new Batch(parts, (error) => {
      if (error === undefined) resolve(batch.rows);
      else reject(preparedError(client, error));
    });
    client.query(batch);
  });
}

type Callback = (error: Error | undefined) => void;

/** Sends all statements at once, with one Sync at their end. */
export class Batch {
  /** Of the statement whose replies arrive: node-postgres notes with them which ones are parsed. */
  name = "";
  text = "";
  callback: Callback;
  readonly rows: Row[][] = [];
  readonly #parts: readonly (Part & { readonly name: string })[];

  constructor(parts: readonly Part[], callback: Callback) {
    this.#parts = parts.map(({ text, values }) => ({
      text,
      ...(values && { values }),
      name: values === undefined ? "" : nameOf(text),
    }));
    this.callback = callback;
    this.#expectNext();
  }

  submit(connection: Connection): null {
    connection.stream.cork();
    for (const { name, text, values = [] } of this.#parts) {
      const isParsed = name !== "" && connection.parsedStatements[name] !== undefined;
      if (!isParsed) connection.parse({ name, text });
      connection.bind({ statement: name, values: values.map(asBuffer) });
      connection.execute({});
    }
    connection.sync();
    connection.stream.uncork();
    return null;
  }

  handleDataRow({ fields }: { readonly fields: readonly (string | null)[] }): void {
    const row = Object.fromEntries(fields.map((value, n) => [`c${String(n + 1)}`, value]));
    this.rows.at(-1)?.push(row);
  }

  handleCommandComplete(): void {
    this.#expectNext();
  }

  handleReadyForQuery(): void {
    this.callback(undefined);
  }

  handleError(error: Error): void {
    this.callback(error);
  }

  #expectNext(): void {
    const next = this.#parts[this.rows.length];
    if (next === undefined) return;
    this.rows.push([]);
    this.name = next.name;
    this.text = next.text;
  }
}

/** Sends the statements as one simple query. */
async function executeTexts(client: PgClient, parts: readonly Part[]): Promise<Row[][]> {
  const text = parts.map((part) => withLiterals(part, client)).join("; ");
  const results = await client.query(text);
  return (Array.isArray(results) ? results : [results]).map(({ rows }) => rows);
}

/** Returns the text of a statement with its parameters as literals. */
function withLiterals({ text, values = [] }: Part, client: PgClient): string {
  return text.replace(/\$(\d+)/g, (_, number: string) =>
    literal(values[Number(number) - 1] ?? null, client),
  );
}

function literal(value: Parameter, client: PgClient): string {
  if (value === null) return "NULL";
  if (typeof value === "string") return client.escapeLiteral(value);
  return client.escapeLiteral(`\\x${bufferOf(value).toString("hex")}`);
}

function asBuffer(value: Parameter): Parameter {
  return value === null || typeof value === "string" ? value : bufferOf(value);
}
