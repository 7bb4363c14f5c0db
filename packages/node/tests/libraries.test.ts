/** The functions in the transactions of each library. `tests/orms` has the large libraries. */

import * as drizzle from "./libraries/drizzle.js";
import * as knex from "./libraries/knex.js";
import * as kysely from "./libraries/kysely.js";
import * as pg from "./libraries/pg.js";
import * as postgres from "./libraries/postgres.js";
import { testLibrary } from "./libraries/suite.js";
import { createDatabase } from "./server.js";

// Other files of tests run at the same time, and a relay reads the effects of all of them.
process.env["PGDATABASE"] = await createDatabase();

await testLibrary(pg.connect);
await testLibrary(postgres.connect);
await testLibrary(postgres.connectUnprepared);
await testLibrary(drizzle.connect);
await testLibrary(drizzle.connectOverPostgres);
await testLibrary(knex.connect);
await testLibrary(kysely.connect);
