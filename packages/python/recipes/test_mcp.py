"""The server of `mcp_server.py`, over its standard input and output, with a gateway over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError, StdioServerParameters, stdio_client

SERVER = Path(__file__).with_name("mcp_server.py")


class Gateway(ThreadingHTTPServer):
    """An external system that does not honour keys: each PUT is another refund."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.refunds: list[tuple[str, str]] = []
        self.is_silent = False
        self.result: Any = None
        self.requested = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Gateway

    def do_PUT(self) -> None:
        key = self.path.rpartition("/")[2]
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.refunds.append((key, body["order"]))
        self.server.requested.set()
        if self.server.is_silent:
            # Wait until the client is gone.
            self.connection.recv(1)
            return
        self._reply(self.server.result or {"refund": key})

    def do_GET(self) -> None:
        key = self.path.rpartition("/")[2]
        known = [refund for refund in self.server.refunds if refund[0] == key]
        self._reply({"refund": key} if known else None)

    def _reply(self, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@contextlib.asynccontextmanager
async def client_of(
    gateway: Gateway, conversation: str, pid: Path | None = None
) -> AsyncIterator[Client]:
    """Starts a server as a process, which writes its id to the file `pid`."""
    command = ["sh", "-c", 'echo $$ > "$0"; exec "$@"', str(pid or os.devnull)]
    command += [sys.executable, str(SERVER)]
    environment = {"GATEWAY_URL": gateway.url, "CONVERSATION_ID": conversation}
    parameters = StdioServerParameters(
        command=command[0], args=command[1:], env=os.environ | environment
    )
    async with Client(stdio_client(parameters)) as client:
        yield client


CALL = {"order": "o-1", "cents": 500, "call_id": "call-1"}


@pytest.fixture
def conversation() -> str:
    return f"conversation-{uuid.uuid4()}"


def test_repeated_tool_call_refunds_once(gateway: Gateway, conversation: str) -> None:

    async def main() -> list[Any]:
        async with client_of(gateway, conversation) as client:
            results = [await client.call_tool("refund", CALL) for _ in range(3)]
            other = await client.call_tool("refund", CALL | {"cents": 600})
            assert "with other arguments" in str(other.content)
            return results

    results = asyncio.run(main())
    assert len(gateway.refunds) == 1
    for result in results:
        assert result.structured_content == {"refund": gateway.refunds[0][0]}


def test_result_that_cannot_be_stored_is_an_error_for_the_model(
    gateway: Gateway, conversation: str
) -> None:
    gateway.result = {"refund": float("nan")}

    async def main() -> list[Any]:
        async with client_of(gateway, conversation) as client:
            return [await client.call_tool("refund", CALL) for _ in range(2)]

    for result in asyncio.run(main()):
        assert result.is_error
        assert "its result cannot be stored" in str(result.content)
    assert len(gateway.refunds) == 1


def test_equal_ids_of_two_conversations_are_two_refunds(
    gateway: Gateway, conversation: str
) -> None:
    async def refund(conversation: str) -> Any:
        async with client_of(gateway, conversation) as client:
            return (await client.call_tool("refund", CALL)).structured_content

    results = [asyncio.run(refund(name)) for name in (conversation, f"{conversation}-2")]
    assert results == [{"refund": key} for key, _ in gateway.refunds]
    assert len(gateway.refunds) == 2


def test_refund_of_a_killed_server_is_looked_up(
    gateway: Gateway, conversation: str, tmp_path: Path
) -> None:
    gateway.is_silent = True
    pid = tmp_path / "pid"

    async def call_and_kill() -> None:
        async with client_of(gateway, conversation, pid) as client:
            calling = asyncio.create_task(client.call_tool("refund", CALL))
            await asyncio.to_thread(gateway.requested.wait, 60)
            os.kill(int(pid.read_text()), signal.SIGKILL)
            with pytest.raises(MCPError):
                await calling

    async def repeat() -> Any:
        async with client_of(gateway, conversation) as client:
            deadline = time.monotonic() + 60
            while (result := await client.call_tool("refund", CALL)).is_error:
                assert "is in progress" in str(result.content)
                assert time.monotonic() < deadline
            return result

    asyncio.run(call_and_kill())
    gateway.is_silent = False
    result = asyncio.run(repeat())
    assert len(gateway.refunds) == 1
    assert result.structured_content == {"refund": gateway.refunds[0][0]}
