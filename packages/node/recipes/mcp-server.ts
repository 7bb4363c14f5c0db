/**
 * A server of the Model Context Protocol with a tool that makes each of its calls once.
 *
 * A model, its framework or the network repeats a call whose result was lost. The repeated call has
 * the same `callId`, and returns the recorded result. `node mcp-server.js` serves one conversation
 * over the standard input and output. The host names it in CONVERSATION_ID, and starts the server
 * again with the same name: the ids of two conversations can be equal.
 */

import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { z } from "zod";

import { CallRefused, once, type Found, type UnknownCall } from "idem-pg";

import { poolOf, required } from "./environment.js";

const gateway = required("GATEWAY_URL");
const conversation = required("CONVERSATION_ID");

const Request = z.object({
  order: z.string(),
  cents: z.int().positive(),
  callId: z.string().min(1).max(255).describe("The id of your tool call. Repeat it with its id."),
});
const Refund = z.object({ refund: z.string() });
type Refund = z.infer<typeof Refund>;

/** Sends the refund to the gateway, under the idempotency key of the call. */
const refund = once(
  poolOf(4),
  "tools.refund",
  async ({ order, cents }: z.infer<typeof Request>, _context, call): Promise<Refund> => {
    const body = JSON.stringify({ order, cents });
    const url = `${gateway}/${call.idempotencyKey}`;
    const reply = await fetch(url, { method: "PUT", body, signal: call.signal });
    if (reply.status === 422) throw new CallRefused(await reply.text());
    if (!reply.ok) throw new Error(`the gateway replied ${String(reply.status)}`);
    return Refund.parse(await reply.json());
  },
  {
    scope: () => conversation,
    id: ({ callId }) => callId,
    onUnknown: findRefund,
    // A call can be repeated so long after its process was killed.
    leaseMs: 2000,
  },
);

/** Asks the gateway for the refund of a call whose result is not known. */
async function findRefund(call: UnknownCall): Promise<Found<Refund> | null> {
  const reply = await fetch(`${gateway}/${call.idempotencyKey}`, { signal: call.signal });
  if (!reply.ok) throw new Error(`the gateway replied ${String(reply.status)}`);
  const found = Refund.nullable().parse(await reply.json());
  return found === null ? null : { found };
}

const server = new McpServer({ name: "payments", version: "1.0.0" });
server.registerTool(
  "refund",
  { description: "Refunds an order.", inputSchema: Request.shape, outputSchema: Refund.shape },
  // The model gets the message of an error.
  async (request) => {
    const result = await refund(request);
    return { content: [{ type: "text", text: JSON.stringify(result) }], structuredContent: result };
  },
);
await server.connect(new StdioServerTransport());
