// Sessions of libraries that execute a callback in a transaction, and end the transaction when the
// callback returns.

/** The callback fails with this error to roll back. */
class RolledBack extends Error {}

/**
 * Returns a session. `pool` is the object of the library, with a pool of one connection, and
 * `refusal` returns the `Refusal` for an error of the server, and other errors unchanged.
 */
export function session({ pool, transaction, execute, refusal, close }) {
  let open = null;

  async function run(sql, values) {
    if (sql === "BEGIN") {
      open = await begin(transaction);
      return [];
    }
    if (open === null || !["COMMIT", "ROLLBACK"].includes(sql)) {
      return execute(open?.handle ?? pool, sql, values);
    }
    const ending = open;
    open = null;
    await (sql === "COMMIT" ? ending.commit() : ending.rollback());
    return [];
  }

  return {
    async execute(sql, values) {
      try {
        return await run(sql, values);
      } catch (error) {
        throw refusal(error);
      }
    },
    async close() {
      await open?.rollback();
      await close();
    },
  };
}

/** Starts a transaction, and returns when the library has called the callback. */
async function begin(transaction) {
  const callback = Promise.withResolvers();
  const started = Promise.withResolvers();
  const ended = transaction((handle) => {
    started.resolve(handle);
    return callback.promise;
  });
  ended.catch(started.reject);
  return {
    handle: await started.promise,
    async commit() {
      callback.resolve();
      await ended;
    },
    async rollback() {
      callback.reject(new RolledBack());
      await ended.catch((error) => {
        if (!(error instanceof RolledBack)) throw error;
      });
    },
  };
}
