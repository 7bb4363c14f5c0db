/** Fingerprints, which distinguish different requests with the same key. */

import { createHash } from "node:crypto";

/** Returns SHA-256 over the method, the path with its query as it was sent, and the body. */
export function fingerprintOf(method: string, target: string, body: Uint8Array): Buffer {
  // A zero byte separates the parts, because a method and a path contain none.
  const head = Buffer.from(`${method}\0${pathAndQuery(target)}\0`, "latin1");
  return createHash("sha256").update(head).update(body).digest();
}

/** Removes the authority of a target in absolute form. A path can begin with two slashes. */
function pathAndQuery(target: string): string {
  if (target.startsWith("/")) return target;
  const path = target.replace(/^[^/?]*:\/\/[^/?]*/, "");
  return path.startsWith("/") ? path : `/${path}`;
}
