/** The error responses of the middleware, as `application/problem+json` (RFC 9457). */

import { CommitUnknownError, IdemError } from "../errors.js";

const TITLES: Readonly<Record<number, string>> = {
  400: "Bad Request",
  403: "Forbidden",
  409: "Conflict",
  413: "Payload Too Large",
  422: "Unprocessable Entity",
  500: "Internal Server Error",
  503: "Service Unavailable",
};

/** Each kind of problem with its status and its text. The name is the end of its `type`. */
const KINDS = {
  "missing-key": [400, "the request has no Idempotency-Key header"],
  "bad-key": [400, "the Idempotency-Key header is invalid"],
  "unknown-caller": [
    403,
    "the caller of the request is not known, and each caller has its own keys",
  ],
  "key-too-long": [400, "the key together with the name of its caller is too long"],
  "unreadable-request": [400, "the body of the request could not be read"],
  "request-too-large": [413, "the body of the request is too large"],
  "in-progress": [409, "a request with this key is being processed"],
  "not-recorded": [409, "this key was used before, but no response to it is recorded"],
  "mismatch": [
    422,
    "this key was used before for another request: another method, path or body",
  ],
  "response-too-large": [
    500,
    "the response is too large to be recorded, so nothing was stored",
  ],
  "exhausted": [
    500,
    "the request was not processed: its attempts are used up, and none has completed",
  ],
  "failed": [500, "the request could not be processed"],
  "unavailable": [
    503,
    "the request could not be processed now; send it again with the same key",
  ],
  "in-doubt": [
    503,
    "it is not known whether the request took effect; " +
      "send it again with the same key to find out",
  ],
} as const satisfies Readonly<Record<string, readonly [number, string]>>;

export type Kind = keyof typeof KINDS;

/** After these the same request may soon succeed. The response then has Retry-After. */
const TRANSIENT: ReadonlySet<Kind> = new Set<Kind>(["in-progress", "unavailable", "in-doubt"]);

/** After a switchover, an old primary is read-only until the clients use the new one. */
const READ_ONLY = "25006";

/** The reason why a request gets an error response of the middleware. */
export class Problem extends Error {
  override name = "Problem";
  readonly kind: Kind;
  readonly status: number;

  constructor(kind: Kind, detail?: string, cause?: unknown) {
    const [status, text] = KINDS[kind];
    super(detail ?? text, { cause });
    this.kind = kind;
    this.status = status;
  }

  /**
   * Converts a problem that occurs after a leased handler has run. The handler may have had an
   * effect outside of the database.
   */
  afterWork(): Problem {
    const isUnknown = this.kind === "unavailable" || this.kind === "failed";
    return isUnknown ? new Problem("in-doubt", undefined, this.cause) : this;
  }

  headers(): [string, string][] {
    const type: [string, string] = ["content-type", "application/problem+json"];
    if (!TRANSIENT.has(this.kind)) return [type];
    return [type, ["retry-after", "1"]];
  }

  body(): Buffer {
    const problem = {
      type: `urn:idem:${this.kind}`,
      title: TITLES[this.status],
      status: this.status,
      detail: this.message,
    };
    return Buffer.from(JSON.stringify(problem));
  }
}

/** Converts an error of the database. The client does not get its text. */
export function problemOf(error: unknown): Problem {
  if (error instanceof Problem) return error;
  if (error instanceof CommitUnknownError) return new Problem("in-doubt", undefined, error);
  const isPassing =
    error instanceof IdemError && (error.retryable || error.sqlstate === READ_ONLY);
  return new Problem(isPassing ? "unavailable" : "failed", undefined, error);
}
