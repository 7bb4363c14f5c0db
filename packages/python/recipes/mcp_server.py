"""A server of the Model Context Protocol with a tool that makes each of its calls once.

A model, its framework or the network repeats a call whose result was lost. The repeated call has
the same `call_id`, and returns the recorded result. `python mcp_server.py` serves one conversation
over the standard input and output. The host names it in CONVERSATION_ID, and starts the server
again with the same name: the ids of two conversations can be equal.
"""

from __future__ import annotations

import json
import os
import urllib.request
from datetime import timedelta

import psycopg
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from idem_pg import CallRefusedError, Found, ToolBusyError, ToolFailedError, UnknownCall, once

GATEWAY = os.environ["GATEWAY_URL"]
CONVERSATION = os.environ["CONVERSATION_ID"]

server = MCPServer("payments")


def look_up(call: UnknownCall) -> Found | None:
    """Asks the gateway for the refund of a call whose result is not known."""
    with urllib.request.urlopen(f"{GATEWAY}/refunds/{call.idempotency_key}") as reply:
        refund = json.load(reply)
    return None if refund is None else Found(refund)


@once(
    psycopg.connect,
    "tools.refund",
    scope="conversation",
    id="call_id",
    key="key",
    on_unknown=look_up,
    # A call can be repeated so long after its process was killed.
    lease_for=timedelta(seconds=2),
)
def refund_once(
    order: str, cents: int, *, conversation: str, call_id: str, key: str = ""
) -> dict[str, str]:
    """Sends a refund to the gateway, under the idempotency key of the call."""
    request = urllib.request.Request(
        f"{GATEWAY}/refunds/{key}",
        data=json.dumps({"order": order, "cents": cents}).encode(),
        method="PUT",
    )
    with urllib.request.urlopen(request) as reply:
        result: dict[str, str] = json.load(reply)
    return result


@server.tool()
def refund(order: str, cents: int, call_id: str) -> dict[str, str]:
    """Refunds an order. `call_id` is the id of your tool call: pass the same one to repeat it."""
    try:
        return refund_once(order, cents, conversation=CONVERSATION, call_id=call_id)
    except (CallRefusedError, ToolBusyError, ToolFailedError) as error:
        # The model gets the text of a ToolError only.
        raise ToolError(str(error)) from error


if __name__ == "__main__":
    server.run()
