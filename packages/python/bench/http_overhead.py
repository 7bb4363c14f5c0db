"""Measures what the middlewares of HTTP cost: the time per request against the same SQL by hand.

`python bench/http_overhead.py [rounds] [messages]` prints the same figures as `overhead.py`. Both
sides call the application without a network. A request is a claim with its fingerprint, an update,
a record of the response and a commit. The side by hand reads and sends the same requests and
responses, but it has no savepoint, and it does not forbid a COMMIT of the handler. It records with
two statements, and the middlewares with one.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import itertools
import json
import os
import re
import uuid
from collections.abc import Callable
from typing import Any

import asyncpg
import django
import psycopg_pool
from django.conf import settings
from django.core.handlers.base import BaseHandler
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.test.utils import override_settings
from django.urls import path
from measure import UPDATE, Side, compare, prepare

from idem_pg.http import IdempotencyMiddleware, Scope, request_transaction

CLAIM = (
    "SELECT CAST(outcome AS text), handled_at FROM idem_claim("
    "CAST(%s AS text), CAST(%s AS text), false, fingerprint => CAST(%s AS bytea))"
)
BEGIN = (
    "SELECT CAST(state AS text) FROM idem_begin_call("
    "CAST(%s AS text), CAST(%s AS text), CAST(%s AS text), CAST(CAST(%s AS text) AS jsonb))"
)
FINISH = (
    "SELECT idem_finish_call("
    "CAST(%s AS text), CAST(%s AS text), CAST(%s AS text), CAST(CAST(%s AS text) AS jsonb))"
)
DESTINATION, STEP = "overhead.http", "http-response"
BODY = json.dumps({"item": "book", "cents": 500}).encode()
RESPONSE = json.dumps({"order": 4711, "state": "placed"}).encode()
HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(RESPONSE))]


def numbered(sql: str) -> str:
    """Returns the statement with the placeholders of asyncpg."""
    numbers = itertools.count(1)
    return re.sub("%s", lambda _: f"${next(numbers)}", sql)


def fingerprint_of(method: str, target: bytes, body: bytes) -> bytes:
    return hashlib.sha256(b"\0".join((method.encode(), target, body))).digest()


def record_of(fingerprint: bytes) -> tuple[str, str]:
    """Returns the request and the response of the journal."""
    response = {
        "fingerprint": fingerprint.hex(),
        "status": 201,
        "headers": [["content-type", "application/json"]],
        "body_base64": base64.b64encode(RESPONSE).decode(),
    }
    return json.dumps({"fingerprint": fingerprint.hex()}), json.dumps(response)


async def respond(send: Any) -> None:
    await send({"type": "http.response.start", "status": 201, "headers": HEADERS})
    await send({"type": "http.response.body", "body": RESPONSE})


def key_of(scope: Any) -> str:
    return str(dict(scope["headers"])[b"idempotency-key"], "ascii")


async def handler(scope: Any, receive: Any, send: Any) -> None:
    """The application behind the middleware."""
    await receive()
    await request_transaction(scope).connection.execute(UPDATE)
    await respond(send)


def compare_asgi(name: str, by_hand: Any, pool: Any, loop: asyncio.AbstractEventLoop) -> None:
    middleware = IdempotencyMiddleware(handler, pool, DESTINATION, Scope.single_tenant())

    def calling(app: Any) -> Side:
        return lambda: loop.run_until_complete(request(app))

    compare(name, calling(by_hand), calling(middleware))
    loop.run_until_complete(pool.close())


async def request(app: Any) -> None:
    """Calls an application with a new key."""
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/orders",
        "raw_path": b"/orders",
        "query_string": b"",
        "headers": [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(BODY)),
            (b"idempotency-key", str(uuid.uuid4()).encode()),
        ],
    }
    received = [{"type": "http.request", "body": BODY, "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        if not received:
            await asyncio.Event().wait()
        return received.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    assert sent[0]["status"] == 201


def compare_psycopg(loop: asyncio.AbstractEventLoop) -> None:
    pool = psycopg_pool.AsyncConnectionPool(min_size=1, max_size=1, open=False)
    loop.run_until_complete(pool.open())

    async def by_hand(scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        fingerprint = fingerprint_of(scope["method"], scope["raw_path"], body)
        message_id = f"all:{key_of(scope)}"
        async with pool.connection() as connection:
            cursor = await connection.execute(CLAIM, [message_id, DESTINATION, fingerprint])
            outcome = await cursor.fetchone()
            assert outcome is not None
            assert outcome[0] == "claimed"
            await connection.execute(UPDATE)
            begun, response = record_of(fingerprint)
            await connection.execute(BEGIN, [message_id, DESTINATION, STEP, begun])
            await connection.execute(FINISH, [message_id, DESTINATION, STEP, response])
        await respond(send)

    compare_asgi("ASGI, psycopg", by_hand, pool, loop)


def compare_asyncpg(loop: asyncio.AbstractEventLoop) -> None:
    pool: Any = loop.run_until_complete(_asyncpg_pool())
    claim, begin, finish = numbered(CLAIM), numbered(BEGIN), numbered(FINISH)

    async def by_hand(scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        fingerprint = fingerprint_of(scope["method"], scope["raw_path"], body)
        message_id = f"all:{key_of(scope)}"
        async with pool.acquire() as connection, connection.transaction():
            outcome = await connection.fetchrow(claim, message_id, DESTINATION, fingerprint)
            assert outcome[0] == "claimed"
            await connection.execute(UPDATE)
            begun, response = record_of(fingerprint)
            await connection.fetch(begin, message_id, DESTINATION, STEP, begun)
            await connection.fetch(finish, message_id, DESTINATION, STEP, response)
        await respond(send)

    compare_asgi("ASGI, asyncpg", by_hand, pool, loop)


async def _asyncpg_pool() -> Any:
    return await asyncpg.create_pool(min_size=1, max_size=1)


class Urls:
    """A module of URLs with one view."""

    def __init__(self, view: Callable[[HttpRequest], HttpResponse]) -> None:
        self.urlpatterns = [path("orders", view)]


def by_hand_in_django(request: HttpRequest) -> HttpResponse:
    fingerprint = fingerprint_of("POST", request.path.encode(), request.body)
    message_id = f"all:{request.headers['idempotency-key']}"
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(CLAIM, [message_id, DESTINATION, fingerprint])
        assert cursor.fetchone()[0] == "claimed"
        cursor.execute(UPDATE)
        begun, response = record_of(fingerprint)
        cursor.execute(BEGIN, [message_id, DESTINATION, STEP, begun])
        cursor.execute(FINISH, [message_id, DESTINATION, STEP, response])
    return HttpResponse(RESPONSE, status=201, content_type="application/json")


def view_in_django(_request: HttpRequest) -> HttpResponse:
    with connection.cursor() as cursor:
        cursor.execute(UPDATE)
    return HttpResponse(RESPONSE, status=201, content_type="application/json")


def compare_django() -> None:
    database = {"ENGINE": "django.db.backends.postgresql", "NAME": os.environ["PGDATABASE"]}
    settings.configure(
        ALLOWED_HOSTS=["*"],
        DATABASES={"default": database},
        IDEM_HTTP={"DESTINATION": DESTINATION, "SCOPE": Scope.single_tenant()},
        USE_TZ=True,
    )
    django.setup()
    requests = RequestFactory()

    def side(view: Any, middleware: list[str]) -> Side:
        urls = Urls(view)
        handler = BaseHandler()
        with override_settings(MIDDLEWARE=middleware):
            handler.load_middleware()

        def call() -> None:
            key = str(uuid.uuid4())
            content_type = "application/json"
            request = requests.post("/orders", BODY, content_type, HTTP_IDEMPOTENCY_KEY=key)
            settings.ROOT_URLCONF = urls
            assert handler.get_response(request).status_code == 201

        return call

    package = ["idem_pg.http.django.IdempotencyMiddleware"]
    compare("Django", side(by_hand_in_django, []), side(view_in_django, package))
    connection.close()


def main() -> None:
    prepare()
    for compare_driver in (compare_psycopg, compare_asyncpg):
        with contextlib.closing(asyncio.new_event_loop()) as loop:
            compare_driver(loop)
    compare_django()


if __name__ == "__main__":
    main()
