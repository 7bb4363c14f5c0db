/** What this package knows of a statement of postgres.js. The members are those of 3.0 to 3.4. */

type Settle = (value: unknown) => void;

export interface Query {
  /** Sends the statement. postgres.js calls it once, and never for a part of a statement. */
  handler: (query: Query) => unknown;
  strings: readonly string[];
  /** Set for a cursor before the statement is sent. Its iterator replaces `resolve`, `reject`. */
  readonly cursorFn?: unknown;
  resolve: Settle;
  reject: Settle;
}

/** Returns whether the result of `sql` is a statement. Identifiers and lists are none. */
export function isQuery(candidate: unknown): candidate is Query {
  if (!(candidate instanceof Promise)) return false;
  const { handler, resolve, reject } = candidate as Partial<Query>;
  if ([handler, resolve, reject].every((member) => typeof member === "function")) return true;
  throw new TypeError("this version of postgres.js is not supported: 3.0 to 3.4 are");
}

/** Calls the observer before the statement succeeds (`resolve`) or fails (`reject`). */
export function observe(query: Query, name: "resolve" | "reject", observer: Settle): void {
  let settle = query[name];
  if (query.cursorFn === undefined) {
    query[name] = (value) => {
      observer(value);
      settle(value);
    };
    return;
  }
  Object.defineProperty(query, name, {
    get: (): Settle => (value) => {
      observer(value);
      settle(value);
    },
    set: (replacement: Settle) => {
      settle = replacement;
    },
  });
}
