/** A proxy in front of the server that loses the reply to a COMMIT, or removes comments. */

import { once } from "node:events";
import { connect, createServer, type AddressInfo, type Socket } from "node:net";

import type { Settings } from "./pools.js";

export interface Proxy {
  /** The settings of a pool whose connections go through the proxy. */
  readonly settings: Settings;
  /** Closes the next connection that sends COMMIT, after the server has replied to it. */
  loseNextCommit(): void;
  /** From now on the server gets spaces instead of this text. */
  remove(text: string): void;
  /** The number of commits whose reply was lost. */
  lost(): number;
  close(): Promise<void>;
}

export async function startProxy(): Promise<Proxy> {
  const sockets = new Set<Socket>();
  let armed = false;
  let lost = 0;
  let removed: string | undefined;
  const server = createServer((client) => {
    const upstream = connectToServer();
    for (const socket of [client, upstream]) {
      sockets.add(socket);
      socket.on("error", () => undefined);
      socket.on("close", () => {
        sockets.delete(socket);
        client.destroy();
        upstream.destroy();
      });
    }
    client.on("data", (data) => {
      if (removed === undefined) upstream.write(data);
      else upstream.write(without(removed, data));
    });
    upstream.on("data", (data) => {
      // The command tag of the reply. A client may send COMMIT as a prepared statement.
      if (armed && data.toString("latin1").includes("COMMIT\0")) {
        armed = false;
        lost += 1;
        client.destroy();
      } else {
        client.write(data);
      }
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    settings: { host: "127.0.0.1", port: (server.address() as AddressInfo).port },
    loseNextCommit: () => {
      armed = true;
    },
    remove: (text) => {
      removed = text;
    },
    lost: () => lost,
    async close() {
      for (const socket of sockets) socket.destroy();
      server.close();
      await once(server, "close");
    },
  };
}

function without(text: string, data: Buffer): Buffer {
  const kept = data.toString("latin1").replaceAll(text, " ".repeat(text.length));
  return Buffer.from(kept, "latin1");
}

/** Connects to the server of the tests. */
export function connectToServer(): Socket {
  const { PGHOST: host = "localhost", PGPORT: port = "5432" } = process.env;
  if (host.startsWith("/")) return connect(`${host}/.s.PGSQL.${port}`);
  return connect(Number(port), host);
}
