/** The server of `mcp-server.ts`, over its standard input and output, with a gateway over HTTP. */

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { execPath } from "node:process";
import { test, type TestContext } from "node:test";

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";

import { startGateway, type Gateway } from "../../tests/gateway.js";
import { fileOf, variantOf } from "./program.js";
import { until } from "./until.js";

/** Starts a server as a process, and connects a client to it. */
async function connect(
  t: TestContext,
  { url }: Gateway,
  conversation: string,
  program = "mcp-server",
) {
  const more = { GATEWAY_URL: url, CONVERSATION_ID: conversation };
  const env = { ...process.env, ...more } as Record<string, string>;
  const transport = new StdioClientTransport({ command: execPath, args: [fileOf(program)], env });
  const client = new Client({ name: "test", version: "1.0.0" });
  await client.connect(transport);
  t.after(() => client.close());
  const call = (cents: number) =>
    client.callTool({ name: "refund", arguments: { order: "o-1", cents, callId: "call-1" } });
  const kill = () => process.kill(transport.pid ?? assert.fail(), "SIGKILL");
  return { call, kill };
}

async function openGateway(t: TestContext): Promise<Gateway> {
  const gateway = await startGateway();
  t.after(() => gateway.close());
  return gateway;
}

/** Kills a server in the middle of a call, and repeats the call with another server. */
async function killAndRepeat(t: TestContext, gateway: Gateway, program: string) {
  const conversation = randomUUID();
  gateway.isSilent = true;
  const first = await connect(t, gateway, conversation, program);
  const lost = assert.rejects(first.call(500));
  await until("a refund", () => Promise.resolve(gateway.refunds.length === 1));
  first.kill();
  await lost;
  gateway.isSilent = false;
  const second = await connect(t, gateway, conversation, program);
  let result: Awaited<ReturnType<typeof second.call>> | undefined;
  await until("the call is free", async () => {
    result = await second.call(500);
    if (result.isError === true) assert.match(JSON.stringify(result.content), /is in progress/);
    return result.isError !== true;
  });
  return result?.structuredContent;
}

test("repeated tool call refunds once", async (t) => {
  const gateway = await openGateway(t);
  const { call } = await connect(t, gateway, randomUUID());
  for (let n = 0; n < 3; n += 1) {
    const result = await call(500);
    assert.deepEqual(result.structuredContent, { refund: gateway.refunds[0] });
  }
  const other = await call(600);
  assert.equal(other.isError, true);
  assert.match(JSON.stringify(other.content), /with other arguments/);
  assert.equal(gateway.refunds.length, 1);
});

test("equal ids of two conversations are two refunds", async (t) => {
  const gateway = await openGateway(t);
  for (let n = 0; n < 2; n += 1) {
    const { call } = await connect(t, gateway, randomUUID());
    const result = await call(500);
    assert.deepEqual(result.structuredContent, { refund: gateway.refunds[n] });
  }
  assert.equal(new Set(gateway.refunds).size, 2);
});

test("refund of a killed server is looked up", async (t) => {
  const gateway = await openGateway(t);
  const result = await killAndRepeat(t, gateway, "mcp-server");
  assert.equal(gateway.refunds.length, 1);
  assert.deepEqual(result, { refund: gateway.refunds[0] });
});

// The broken variant that the test above finds.
test("refund of a killed server that repeats is made twice", async (t) => {
  const gateway = await openGateway(t);
  const broken = variantOf("mcp-server", "repeat", "onUnknown: findRefund", 'onUnknown: "repeat"');
  await killAndRepeat(t, gateway, broken);
  assert.equal(gateway.refunds.length, 2);
});
