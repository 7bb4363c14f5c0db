// node-postgres with its default settings. It returns int8 as text.

import pg from "pg";

import { Json, Refusal } from "../protocol.js";

const { INT8, JSON: JSON_TYPE, JSONB } = pg.types.builtins;

export async function connect() {
  const client = new pg.Client();
  await client.connect();
  return {
    async execute(text, values) {
      try {
        const { rows, fields } = await client.query({
          text,
          values: values.map(parameter),
          rowMode: "array",
        });
        return rows.map((row) => row.map((cell, n) => value(cell, fields[n].dataTypeID)));
      } catch (error) {
        if (error instanceof pg.DatabaseError) {
          throw new Refusal(error.code, error.hint, error.message);
        }
        throw error;
      }
    },
    close: () => client.end(),
  };
}

/** node-postgres would write an array as an array of PostgreSQL, so JSON is passed as text. */
function parameter(value) {
  return value instanceof Json ? JSON.stringify(value.value) : value;
}

function value(cell, type) {
  if (cell === null) return null;
  if (type === INT8) return Number(cell);
  return type === JSON_TYPE || type === JSONB ? new Json(cell) : cell;
}
