"""The run of an ASGI application for one protected request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from .problem import Kind, Problem
from .response import Response

Message = MutableMapping[str, Any]
HttpScope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[HttpScope, Receive, Send], Awaitable[None]]


async def send_response(response: Response, send: Send) -> None:
    headers = [
        (name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers
    ]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


class DisconnectedError(Exception):
    """The client has disconnected before the response was complete."""


class ResponseTooLargeError(Exception):
    """Stops the application, because its response is larger than `response_limit`."""


class ApplicationRun:
    """Runs the application in a task, and collects its response. See `Handler`.

    The application continues after its response only when the response was recorded and sent. What
    it does then (background tasks) happens after the commit.
    """

    complete: Response
    """The response of the application, when it has returned one."""

    def __init__(
        self,
        app: App,
        scope: HttpScope,
        body: bytes,
        limit_of: Callable[[int], int | None],
    ) -> None:
        self.is_recorded = False
        self._app = app
        self._scope = scope
        self._request_body: bytes | None = body
        self._limit_of = limit_of
        self._start: Message | None = None
        self._chunks: list[bytes] = []
        self._size = 0
        self._is_complete = False
        self._is_too_large = False
        self._is_disconnected = False
        self._settled = asyncio.Event()
        self._sent = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def disconnect(self) -> None:
        """Lets `run` stop the application, unless the response is complete."""
        self._is_disconnected = True
        self._settled.set()

    async def run(self, shared: Any) -> Response:
        """Runs the application until its response is complete. Raises its exception."""
        self._scope["idem"] = shared
        if self._is_disconnected:
            raise DisconnectedError
        self._task = asyncio.create_task(self._run(), name="idem http application")
        await self._settled.wait()
        if self._is_complete and self._start is not None:
            headers = [
                (bytes(name).decode("latin-1"), bytes(value).decode("latin-1"))
                for name, value in self._start["headers"]
            ]
            self.complete = Response(self._start["status"], headers, b"".join(self._chunks))
            return self.complete
        if self._is_too_large:
            await self.stop()
            raise Problem(Kind.RESPONSE_TOO_LARGE)
        if self._task.done():
            self._task.result()
            raise Problem(Kind.FAILED, "the application has returned no complete response")
        await self.stop()
        raise DisconnectedError

    async def end(self) -> None:
        """Lets the application continue if its response is recorded. Else stops it."""
        await (self.finish() if self.is_recorded else self.stop())

    async def finish(self) -> None:
        """Lets the application continue after its response was sent, and waits for its end."""
        self._sent.set()
        if self._task is not None:
            await self._task

    async def stop(self) -> None:
        """Cancels the application, and waits for its end. Its exception is dropped."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.exception()

    async def _run(self) -> None:
        try:
            await self._app(self._scope, self._receive, self._send)
        finally:
            self._settled.set()

    async def _receive(self) -> Message:
        body, self._request_body = self._request_body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await self._sent.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = {"headers": (), **message}
        elif message["type"] == "http.response.body" and self._start is not None:
            self._add(bytes(message.get("body", b"")))
            if not message.get("more_body", False):
                self._is_complete = True
                self._settled.set()
                await self._sent.wait()

    def _add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._size += len(chunk)
        limit = self._limit_of(self._start["status"]) if self._start else None
        if limit is not None and self._size > limit:
            self._is_too_large = True
            self._settled.set()
            raise ResponseTooLargeError
