/** The server with Express 5 or 4. */

import { createServer } from "node:http";

import express, { type Request, type Response } from "express";

import { expressIdempotency } from "../../../src/http/index.js";
import type { Pool } from "../../../src/index.js";
import type { Config } from "../config.js";
import type { Handler, Input, Output } from "../handler.js";
import type { State } from "../state.js";
import { variantOf } from "../variants.js";
import { LARGE, listening, optionsOf, PATHS } from "./app.js";

export async function start(config: Config, state: State, pool: Pool, handler: Handler) {
  const framework = config.framework === "express 4" ? await express4() : express;
  const app = framework();
  // Express prints no errors then.
  app.set("env", "test");
  const options = optionsOf<Request>(config, state, (request) => request.get("x-tenant"));
  const protect =
    config.variant === "sound"
      ? expressIdempotency(pool, options)
      : variantOf(config.variant, pool, options);
  app.use((request, response, next) => {
    state.received += 1;
    response.set("x-outer", request.get("x-outer") ?? "none");
    // Waits forever before the first byte of the response.
    if (request.get("x-pause") !== undefined) response.end = () => response;
    if (request.get("x-parsed") === undefined) next();
    else request.resume().once("end", next);
  });
  const respond = async (request: Request, response: Response) => {
    const input: Input = {
      header: (name) => request.get(name),
      body: typeof request.body === "string" ? request.body : "",
      context: protect.find(request),
    };
    const output = await handler.handle(input);
    sendOf(output, response);
    const late = input.header("x-late");
    if (late !== undefined) await handler.late(input, late);
  };
  app.all(
    PATHS,
    protect,
    framework.text({ type: () => true, limit: LARGE }),
    (request, response, next) => {
      respond(request, response).catch(next);
    },
  );
  app.use((error: unknown, _: Request, response: Response, next: (error: unknown) => void) => {
    if (response.headersSent) next(error);
    else response.status(500).send(String(error));
  });
  return listening(createServer(app), protect.running);
}

async function express4(): Promise<typeof express> {
  // @ts-expect-error: the types are those of Express 5.
  const { default: framework } = (await import("express-4")) as { default: typeof express };
  return framework;
}

function sendOf(output: Output, response: Response): void {
  response.status(output.status).set(output.headers);
  if (output.pieces === undefined) {
    response.send(output.text);
    return;
  }
  for (const piece of output.pieces) response.write(piece);
  if (output.isBroken) response.destroy();
  else response.end();
}
