/** An external system over HTTP that does not honour keys: each PUT is another refund. */

import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";

export interface Refund {
  readonly refund: string;
}

export interface Gateway {
  readonly url: string;
  /** The keys of the refunds. */
  readonly refunds: string[];
  /** Whether the gateway sends only the beginning of its replies to PUT. */
  isSilent: boolean;
  close(): Promise<void>;
}

export async function startGateway(): Promise<Gateway> {
  const refunds: string[] = [];
  const server = createServer((request, response) => {
    const key = request.url?.split("/").at(-1) ?? "";
    response.setHeader("content-type", "application/json");
    if (request.method === "PUT") {
      refunds.push(key);
      if (gateway.isSilent) {
        response.flushHeaders();
        return;
      }
    }
    response.end(JSON.stringify(refunds.includes(key) ? { refund: key } : null));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  const gateway: Gateway = {
    url: `http://127.0.0.1:${String(port)}/refunds`,
    refunds,
    isSilent: false,
    close() {
      server.closeAllConnections();
      return new Promise((resolve) => server.close(() => { resolve(); }));
    },
  };
  return gateway;
}

/** Makes a refund. `onReply` is called when the reply begins. */
export async function refund(url: string, key: string, onReply?: () => void): Promise<Refund> {
  const reply = await fetch(`${url}/${key}`, { method: "PUT" });
  onReply?.();
  return (await reply.json()) as Refund;
}

/** Returns the refund with this key, or null if there is none. */
export async function find(url: string, key: string): Promise<Refund | null> {
  const reply = await fetch(`${url}/${key}`);
  return (await reply.json()) as Refund | null;
}
