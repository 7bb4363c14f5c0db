// postgres.js with its default settings, through `unsafe`, which executes a text with parameters.
// It asks the server for the types of the parameters.

import postgres from "postgres";

import { Json, Refusal } from "../protocol.js";

const INT8 = 20;
const [JSON_TYPE, JSONB_TYPE] = [114, 3802];

export async function connect() {
  const sql = postgres({ max: 1, onnotice: () => {} });
  return {
    async execute(text, values) {
      try {
        // `sql.json` has the type jsonb, and the response of idem_finish_call is json.
        const type = text.includes("idem_finish_call") ? JSON_TYPE : JSONB_TYPE;
        const parameters = values.map((value) => parameter(sql, value, type));
        const rows = await sql.unsafe(text, parameters).values();
        const types = (rows.columns ?? []).map((column) => column.type);
        return rows.map((row) => row.map((cell, n) => value(cell, types[n])));
      } catch (error) {
        if (error instanceof postgres.PostgresError) {
          throw new Refusal(error.code, error.hint, error.message);
        }
        throw error;
      }
    },
    close: () => sql.end(),
  };
}

function parameter(sql, value, type) {
  return value instanceof Json ? sql.typed(value.value, type) : value;
}

function value(cell, type) {
  if (cell === null) return null;
  if (type === INT8) return Number(cell);
  return type === JSON_TYPE || type === JSONB_TYPE ? new Json(cell) : cell;
}
