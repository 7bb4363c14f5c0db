/** A service in a process of its own, which serves until it is killed: program.js <config>. */

import "../programs/parent.js";
import type { Config } from "./config.js";
import { serve } from "./service.js";
import { State } from "./state.js";

const config = JSON.parse(process.argv[2] ?? "") as Config;
const app = await serve(config, new State());
console.log(app.port);
