/** The options of a middleware, and the rules that follow from them. */

import { checkOptions } from "../options.js";
import { keyOf } from "./key.js";
import { Problem } from "./problem.js";
import { Scope } from "./scope.js";

/** How a request is processed: in the transaction that claims it, or under a lease. */
export type Mode = "transaction" | "lease";

export interface Options<R, M extends Mode = "transaction"> {
  /** The name to which the keys belong, for example `shop.place-order`. */
  readonly destination: string;
  /** Which callers share keys. */
  readonly scope: Scope<R>;
  /** `lease` is for work that cannot share a transaction. `transaction` by default. */
  readonly mode?: M | undefined;
  /** The methods of protected requests. POST and PATCH by default. */
  readonly methods?: readonly string[] | undefined;
  /** Whether a request without a key gets status 400. True by default. */
  readonly required?: boolean | undefined;
  /** The largest body of a protected request, in bytes. 1 MiB by default. */
  readonly requestLimit?: number | undefined;
  /** The largest body of a recorded response, in bytes. 1 MiB by default. */
  readonly responseLimit?: number | undefined;
  /** Selects the recorded headers by their names in lower case. All but `set-cookie` by default. */
  readonly keepHeaders?: ((name: string) => boolean) | undefined;
  /** The duration of a lease: 100 milliseconds to 1 day. 30 seconds by default. */
  readonly leaseMs?: number | undefined;
  /** Gets errors of which the client gets only a status. By default they are printed. */
  readonly onError?: ((error: unknown) => void) | undefined;
}

/** Returns the limit of a body of a response in bytes, or null if it is not recorded. */
export type LimitOf = (status: number) => number | null;

/**
 * The statuses below 500 after which another attempt may succeed: with other credentials, at
 * another time, or with the same request.
 */
const TEMPORARY: ReadonlySet<number> = new Set([401, 403, 407, 408, 409, 425, 429]);

const MEBIBYTE = 1 << 20;
const SHORTEST_LEASE_MS = 100;
const LONGEST_LEASE_MS = 24 * 3600 * 1000;

/** The rules of a middleware. */
export class Rules<R> {
  readonly destination: string;
  readonly requestLimit: number;
  readonly leaseMs: number;
  readonly onError: (error: unknown) => void;
  /** Gets the name of a header in lower case. */
  readonly keepsHeader: (name: string) => boolean;
  readonly #scope: Scope<R>;
  readonly #methods: ReadonlySet<string>;
  readonly #isRequired: boolean;
  readonly #responseLimit: number;

  constructor(options: Options<R, Mode>) {
    check(options);
    this.destination = options.destination;
    this.requestLimit = options.requestLimit ?? MEBIBYTE;
    this.leaseMs = options.leaseMs ?? 30_000;
    this.onError = options.onError ?? print;
    this.keepsHeader = options.keepHeaders ?? allButCookies;
    this.#scope = options.scope;
    this.#methods = new Set(options.methods ?? ["POST", "PATCH"]);
    this.#isRequired = options.required ?? true;
    this.#responseLimit = options.responseLimit ?? MEBIBYTE;
  }

  /**
   * Returns the message id of a request, or null if it is not protected. `keys` are the values of
   * its headers `Idempotency-Key`. `request` is passed to the scope.
   */
  messageIdOf(method: string, keys: readonly string[], request: R): string | null {
    if (!this.#methods.has(method)) return null;
    const key = keyOf(keys);
    if (key !== null) return this.#scope.idOf(request, key);
    if (this.#isRequired) throw new Problem("missing-key");
    return null;
  }

  /** Returns whether the body of a request is needed, if the request is protected. */
  needsBody(method: string, keys: readonly string[]): boolean {
    return this.#methods.has(method) && keys.length > 0;
  }

  checkRequestSize(size: number): void {
    if (size <= this.requestLimit) return;
    const limit = String(this.requestLimit);
    throw new Problem(
      "request-too-large",
      `the body of a request with an Idempotency-Key must not exceed ${limit} bytes`,
    );
  }

  /**
   * Returns whether a response with this status is recorded. Statuses after which another attempt
   * may succeed are never recorded.
   */
  keeps(status: number): boolean {
    return status >= 200 && status < 500 && !TEMPORARY.has(status);
  }

  /** Returns the limit of the body of a response, or null if the response is not recorded. */
  limitOf: LimitOf = (status) => (this.keeps(status) ? this.#responseLimit : null);
}

/** Returns whether the writes of a handler are committed together with its response. */
export function keepsWrites(status: number, isRequested: boolean): boolean {
  return isRequested || status < 400 || status >= 500;
}

// The type requires each option and allows no other.
const NAMES: Readonly<Record<keyof Options<never>, true>> = {
  destination: true,
  scope: true,
  mode: true,
  methods: true,
  required: true,
  requestLimit: true,
  responseLimit: true,
  keepHeaders: true,
  leaseMs: true,
  onError: true,
};

function check(options: Options<never, Mode>): void {
  const { destination, scope, mode, methods, leaseMs } = options;
  checkOptions("a middleware", options, ...Object.keys(NAMES));
  if (!(scope instanceof Scope)) {
    throw new TypeError("scope must be Scope.by(...) or Scope.singleTenant()");
  }
  if (typeof destination !== "string" || destination === "") {
    throw new TypeError("destination must be a text that is not empty");
  }
  if (mode !== undefined && !["transaction", "lease"].includes(mode)) {
    throw new TypeError('mode must be "transaction" or "lease"');
  }
  if (methods !== undefined && !Array.isArray(methods)) {
    throw new TypeError("methods must be an array of names");
  }
  if ((methods as string[] | undefined)?.some((name) => name !== name.toUpperCase()) === true) {
    throw new TypeError("the names of methods are in upper case");
  }
  const duration = leaseMs ?? SHORTEST_LEASE_MS;
  if (!(duration >= SHORTEST_LEASE_MS && duration <= LONGEST_LEASE_MS)) {
    throw new RangeError("leaseMs must be between 100 and 86400000");
  }
}

/** A cookie may identify a session, so a replayed response contains no cookie. */
function allButCookies(name: string): boolean {
  return name !== "set-cookie";
}

function print(error: unknown): void {
  console.error("idem-pg: a request with an idempotency key was not processed:", error);
}
