// The values and errors of libraries that use node-postgres. Some libraries return rows without the
// types of the columns, so the parsers of node-postgres mark JSON.

import pg from "pg";

import { Json, Refusal } from "./protocol.js";

const { INT8, JSON: JSON_TYPE, JSONB } = pg.types.builtins;

pg.types.setTypeParser(INT8, Number);
for (const type of [JSON_TYPE, JSONB]) {
  pg.types.setTypeParser(type, (text) => new Json(JSON.parse(text)));
}

/** node-postgres would write an array as an array of PostgreSQL, so JSON is passed as text. */
export function parameter(value) {
  return value instanceof Json ? JSON.stringify(value.value) : value;
}

/** Returns the `Refusal` for an error of the server, and another error unchanged. */
export function refusal(error) {
  if (!(error instanceof pg.DatabaseError)) return error;
  return new Refusal(error.code, error.hint, error.message);
}
