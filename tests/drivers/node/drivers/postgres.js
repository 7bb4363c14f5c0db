// postgres.js with its default settings, through `unsafe`, which executes a text with parameters.
// It asks the server for the types of the parameters.

import postgres from "postgres";

import { Json, Refusal } from "../protocol.js";

const INT8 = 20;
const JSON_TYPES = new Set([114, 3802]);

export async function connect() {
  const sql = postgres({ max: 1, onnotice: () => {} });
  return {
    async execute(text, values) {
      try {
        const rows = await sql.unsafe(text, values.map((value) => parameter(sql, value))).values();
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

function parameter(sql, value) {
  return value instanceof Json ? sql.json(value.value) : value;
}

function value(cell, type) {
  if (cell === null) return null;
  if (type === INT8) return Number(cell);
  return JSON_TYPES.has(type) ? new Json(cell) : cell;
}
