/** The scope of idempotency keys. */

import { isScope, scopedId } from "../message-id.js";
import { Problem } from "./problem.js";

/** The longest message id that the server accepts. */
const LONGEST_ID_BYTES = 1024;

type Caller<R> = (request: R) => string | null | undefined;

/**
 * Defines which callers share keys, and thereby get each other's recorded responses. `R` is a
 * request of the framework, which can have more members than the middleware needs.
 */
export class Scope<R = unknown> {
  readonly #caller: Caller<never> | null;

  private constructor(caller: Caller<never> | null) {
    this.#caller = caller;
  }

  /**
   * Gives each caller its own keys. `caller` gets the request of the framework (with Hono, the
   * context), and returns the name of a tenant, an account or a user. Without a name the request
   * gets status 403.
   *
   * Derive the name from authenticated data: a client that can name another caller can read the
   * recorded responses of that caller.
   */
  static by<R>(caller: (request: R) => string | null | undefined): Scope<R> {
    if (typeof caller !== "function") {
      throw new TypeError("Scope.by needs a function that returns the name of the caller");
    }
    return new Scope<R>(caller);
  }

  /**
   * Lets all callers share the keys. Use this only for a service in which callers may read each
   * other's responses.
   */
  static singleTenant(): Scope {
    return new Scope<unknown>(null);
  }

  /**
   * Returns the message id of a request with this key.
   *
   * @internal
   */
  idOf(request: R, key: string): string {
    const id = scopedId(this.#callerOf(request), key);
    if (Buffer.byteLength(id) > LONGEST_ID_BYTES) throw new Problem("key-too-long");
    return id;
  }

  #callerOf(request: R): string | null {
    if (this.#caller === null) return null;
    const caller = this.#caller(request as never) ?? "";
    if (typeof caller !== "string") {
      throw new TypeError("the function of Scope.by must return a string, null or undefined");
    }
    if (!isScope(caller)) throw new Problem("unknown-caller");
    return caller;
  }
}
