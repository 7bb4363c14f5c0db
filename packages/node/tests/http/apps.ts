/** Starts the server of a framework. A process that is killed loads only its own framework. */

import type { Start } from "./apps/app.js";
import type { Framework } from "./config.js";

export type { App } from "./apps/app.js";

const FRAMEWORKS: Readonly<Record<Framework, () => Promise<{ start: Start }>>> = {
  "express": () => import("./apps/express.js"),
  "express 4": () => import("./apps/express.js"),
  "fastify": () => import("./apps/fastify.js"),
  "hono": () => import("./apps/hono.js"),
};

export const start: Start = async (config, ...more) => {
  const framework = await FRAMEWORKS[config.framework]();
  return framework.start(config, ...more);
};
