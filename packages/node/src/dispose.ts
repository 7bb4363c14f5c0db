/// <reference lib="esnext.disposable" />

/** `Symbol.asyncDispose`, which Node.js has since 18.18. Before, call `dispose`. */
export const asyncDispose: typeof Symbol.asyncDispose =
  (Symbol as { asyncDispose?: typeof Symbol.asyncDispose }).asyncDispose ??
  (Symbol.for("idem-pg.asyncDispose") as typeof Symbol.asyncDispose);
