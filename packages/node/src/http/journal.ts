/** Looks up the recorded response of a request. */

import { idem } from "../idem.js";
import type { Client, Transactor } from "../transactions/pool.js";
import type { Identity, Result } from "./exchange.js";
import { Problem, problemOf } from "./problem.js";
import { Recorded } from "./recorded.js";
import { retried } from "./retry.js";
import { STEP } from "./statements.js";

/** Returns the recorded response, or null if there is none. */
export async function find(
  transactor: Transactor<Client>,
  { id, destination }: Identity,
): Promise<Recorded | null> {
  const calls = () => transactor.run((client) => idem(client).journal.calls(id, destination));
  const found = await retried(calls).catch((error: unknown) => {
    throw problemOf(error);
  });
  const entry = found.find(({ step, state }) => step === STEP && state === "done");
  return entry === undefined ? null : Recorded.from(entry.response);
}

/** Returns the result of a request with a key that was used before. */
export function replayed(found: Recorded | null, { fingerprint }: Identity): Result {
  if (found === null) throw new Problem("not-recorded");
  return { kind: "other", response: found.replay(fingerprint) };
}
