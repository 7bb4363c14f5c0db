/** A proxy in front of the server that cuts the connection at a COMMIT. */

import { once } from "node:events";
import { connect, createServer, type AddressInfo, type Socket } from "node:net";

/** The server gets the COMMIT in the second case only. The service gets no reply in both. */
export type Cut = "before" | "after";

export class Proxy {
  cuts = 0;
  /** Whether all connections end with the cut, and no connection is accepted after it. */
  isForGood = false;
  readonly #server = createServer((client) => {
    this.#accept(client);
  });
  readonly #closed = once(this.#server, "close");
  readonly #sockets = new Set<Socket>();
  #armed: Cut | undefined;

  static async start(): Promise<Proxy> {
    const proxy = new Proxy();
    proxy.#server.listen(0, "127.0.0.1");
    await once(proxy.#server, "listening");
    return proxy;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  /** Cuts the next connection that sends COMMIT: before or after the server has executed it. */
  cutOnce(cut: Cut): void {
    this.#armed = cut;
  }

  async close(): Promise<void> {
    if (this.#server.listening) this.#server.close();
    this.#destroyAll();
    await this.#closed;
  }

  #destroyAll(): void {
    for (const socket of this.#sockets) socket.destroy();
  }

  #accept(client: Socket): void {
    const server = connectToServer();
    for (const socket of [client, server]) {
      this.#sockets.add(socket);
      socket.on("error", () => undefined);
      socket.on("close", () => {
        this.#sockets.delete(socket);
        client.destroy();
        server.destroy();
      });
    }
    let isCut = false;
    const cut = () => {
      this.cuts += 1;
      if (this.isForGood) this.#server.close();
      if (this.isForGood) this.#destroyAll();
      else client.destroy();
    };
    client.on("data", (data) => {
      const found = data.toString("latin1").toUpperCase().includes("COMMIT\0");
      const armed = found ? this.#armed : undefined;
      if (armed !== undefined) this.#armed = undefined;
      if (armed === "before") {
        cut();
        return;
      }
      isCut ||= armed === "after";
      server.write(data);
    });
    server.on("data", (data) => {
      if (isCut) cut();
      else client.write(data);
    });
  }
}

function connectToServer(): Socket {
  const { PGHOST: host = "localhost", PGPORT: port = "5432" } = process.env;
  if (host.startsWith("/")) return connect(`${host}/.s.PGSQL.${port}`);
  return connect(Number(port), host);
}
