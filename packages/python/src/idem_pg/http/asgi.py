"""An ASGI middleware that makes each request with an `Idempotency-Key` take effect once.

    account = Scope.by(lambda request: request.headers.get("x-account"))
    options = Options("shop.place-order", account, applies_to=("/orders",))
    app.add_middleware(IdempotencyMiddleware, source=pool, options=options)

    @app.post("/orders")
    async def place(request: Request) -> Response:
        connection = request_transaction(request).connection
        await connection.execute("INSERT INTO orders (item) VALUES ($1)", item)
        return Response(status_code=201)

A response that the crate `idem-http` has recorded is replayed, and the reverse. docs/http.md says
what differs from that crate.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ..transactions import async_transactions
from .application import (
    App,
    ApplicationRun,
    DisconnectedError,
    HttpScope,
    Receive,
    Send,
    send_response,
)
from .attempt import Attempt, TransactionAttempt
from .fingerprint import fingerprint_of
from .identity import Identity
from .in_transaction import AsgiTransactionAttempt
from .leased import LeaseAttempt
from .options import Options
from .problem import Kind, Problem, log
from .request_head import RequestHead
from .response import Response
from .running import RunningRequests


class IdempotencyMiddleware:
    """Makes each request with an `Idempotency-Key` take effect once. See docs/http.md.

    An application can have several, for different routes: see `applies_to` of `Options`. `source`
    opens transactions: see `async_transactions`. A source that is a function must commit at the end
    of its block. `running` counts the leased requests that are being processed.
    """

    def __init__(
        self,
        app: App,
        source: Any,
        options: Options,
        *,
        running: RunningRequests | None = None,
    ) -> None:
        self.app = app
        self.running = running or RunningRequests()
        self._open = async_transactions(source)
        self._options = options

    async def __call__(self, scope: HttpScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        head = RequestHead(scope)
        try:
            message_id = self._options.message_id(
                head.method, head.path, head.keys, head, is_protected="idem" in head.scope
            )
            if message_id is not None:
                await self._protected(message_id, head, receive, send)
                return
        except Problem as problem:
            await send_response(problem.response(), send)
            return
        await self.app(scope, receive, send)

    async def _protected(
        self, message_id: str, head: RequestHead, receive: Receive, send: Send
    ) -> None:
        body = await self._read(head, receive)
        fingerprint = fingerprint_of(head.method, head.path_and_query, body)
        identity = Identity(message_id, self._options.destination, fingerprint)
        run = ApplicationRun(self.app, _inner_scope(head), body, self._options.limit_of)
        try:
            response = await self._attempted(identity, run, receive)
        except DisconnectedError:
            return
        except Exception:
            await run.stop()
            raise
        try:
            await send_response(response, send)
        finally:
            # A recorded request has taken effect, also if the client does not get the response.
            await run.end()

    async def _attempted(
        self, identity: Identity, run: ApplicationRun, receive: Receive
    ) -> Response:
        """Processes the request in a task of its own, which no cancellation of this one stops."""
        options = self._options
        kind: type[Attempt] = LeaseAttempt if options.is_leased else AsgiTransactionAttempt
        attempt = kind(options, self._open, identity, run)
        task = asyncio.create_task(attempt.response(), name="idem http request")
        if options.is_leased:
            self.running.add(task)
        watch = asyncio.create_task(self._watch(run, receive), name="idem http disconnect")
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            await self._abandon(task, attempt, run)
            raise
        finally:
            watch.cancel()
        found = task.result()
        return run.complete if found is None else found

    async def _abandon(
        self,
        task: asyncio.Task[Response | None],
        attempt: Attempt,
        run: ApplicationRun,
    ) -> None:
        """Ends a request that the server has cancelled. A commit that has begun continues."""
        task.add_done_callback(lambda task: _end_abandoned(task, run))
        if isinstance(attempt, TransactionAttempt):
            run.disconnect()
            if not attempt.has_begun:
                task.cancel()
            await asyncio.wait([task])

    async def _watch(self, run: ApplicationRun, receive: Receive) -> None:
        # A middleware in between can return the body again and again, so this reads once.
        message = await receive()
        # Work under a lease continues: work that is interrupted in the middle helps no client.
        if message["type"] == "http.disconnect" and not self._options.is_leased:
            run.disconnect()

    async def _read(self, head: RequestHead, receive: Receive) -> bytes:
        self._options.check_request_size(head.content_length)
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise Problem(Kind.UNREADABLE_REQUEST)
            body += message.get("body", b"")
            self._options.check_request_size(len(body))
            if not message.get("more_body", False):
                return bytes(body)


def _inner_scope(head: RequestHead) -> HttpScope:
    """Returns the scope of the handler, without extensions of responses that are not recorded."""
    extensions = head.scope.get("extensions") or {}
    kept = {
        name: value for name, value in extensions.items() if not name.startswith("http.response.")
    }
    return {**head.scope, "extensions": kept}


_ENDING: set[asyncio.Task[None]] = set()
"""The event loop keeps only weak references to its tasks."""


def _end_abandoned(task: asyncio.Task[Response | None], run: ApplicationRun) -> None:
    """Ends the application of a request whose server has cancelled it."""
    if task.cancelled() or task.exception() is not None:
        log.debug("a request that the server has cancelled has no response")
    ending = asyncio.create_task(run.end(), name="idem http end")
    _ENDING.add(ending)
    ending.add_done_callback(_ENDING.discard)
