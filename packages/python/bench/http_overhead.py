"""Measures what the middlewares of HTTP cost: the time per request against the same SQL by hand.

`python bench/http_overhead.py [rounds] [messages]` prints the same figures as `overhead.py`. Both
sides call the application without a network. A request is a claim with its fingerprint, an update,
a record of the response and a commit. The side by hand reads and sends the same requests and
responses. It exists twice: "same SQL" executes the statements of the middleware, and "shortest SQL"
has no savepoint, does not forbid a COMMIT of the handler, and records with two statements.
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
from typing import Any, NamedTuple

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

from idem_pg.http import IdempotencyMiddleware, Options, Scope, request_transaction

CLAIM = (
    "SELECT CAST(outcome AS text), handled_at{} FROM idem_claim("
    "CAST(%s AS text), CAST(%s AS text), false, fingerprint => CAST(%s AS bytea))"
)
_CALL = "CAST(%s AS text), CAST(%s AS text), CAST(%s AS text), CAST(CAST(%s AS text) AS {})"
_BEGIN, _FINISH = _CALL.format("jsonb"), _CALL.format("json")
BEGIN = f"SELECT CAST(state AS text) FROM idem_begin_call({_BEGIN})"
FINISH = f"SELECT idem_finish_call({_FINISH})"
RECORD = f"SELECT idem_finish_call({_FINISH}), idem_allow_commit() FROM idem_begin_call({_BEGIN})"


class ByHand(NamedTuple):
    """The statements of the side by hand, with the placeholders of psycopg."""

    name: str
    claim: str
    before_handler: list[str]
    after_handler: list[str]
    """Only Django releases the savepoint."""
    record: list[str]

    def records(self, message_id: str, fingerprint: bytes) -> list[tuple[str, list[str]]]:
        """Returns the statements that record the response, with their parameters."""
        call = [message_id, DESTINATION, STEP]
        begun, response = record_of(fingerprint)
        parameters = {
            BEGIN: [*call, begun],
            FINISH: [*call, response],
            RECORD: [*call, response, *call, begun],
        }
        return [(sql, parameters[sql]) for sql in self.record]


BY_HAND = [
    ByHand(
        "same SQL", CLAIM.format(", idem_forbid_commit()"), ["SAVEPOINT s"], ["RELEASE s"], [RECORD]
    ),
    ByHand("shortest SQL", CLAIM.format(""), [], [], [BEGIN, FINISH]),
]
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
    options = Options(DESTINATION, Scope.single_tenant(), applies_to=("/orders",))
    middleware = IdempotencyMiddleware(handler, pool, options)

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


def compare_psycopg(hand: ByHand, loop: asyncio.AbstractEventLoop) -> None:
    pool = psycopg_pool.AsyncConnectionPool(min_size=1, max_size=1, open=False)
    loop.run_until_complete(pool.open())

    async def by_hand(scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        fingerprint = fingerprint_of(scope["method"], scope["raw_path"], body)
        message_id = f"all:{key_of(scope)}"
        async with pool.connection() as connection:
            cursor = await connection.execute(hand.claim, [message_id, DESTINATION, fingerprint])
            outcome = await cursor.fetchone()
            assert outcome is not None
            assert outcome[0] == "claimed"
            for sql in [*hand.before_handler, UPDATE]:
                await connection.execute(sql)
            for sql, parameters in hand.records(message_id, fingerprint):
                await connection.execute(sql, parameters)
        await respond(send)

    compare_asgi(f"ASGI, psycopg, {hand.name}", by_hand, pool, loop)


def compare_asyncpg(hand: ByHand, loop: asyncio.AbstractEventLoop) -> None:
    pool: Any = loop.run_until_complete(_asyncpg_pool())
    claim = numbered(hand.claim)
    numbers = {sql: numbered(sql) for sql in hand.record}

    async def by_hand(scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        fingerprint = fingerprint_of(scope["method"], scope["raw_path"], body)
        message_id = f"all:{key_of(scope)}"
        async with pool.acquire() as connection, connection.transaction():
            outcome = await connection.fetchrow(claim, message_id, DESTINATION, fingerprint)
            assert outcome[0] == "claimed"
            for sql in [*hand.before_handler, UPDATE]:
                await connection.execute(sql)
            for sql, parameters in hand.records(message_id, fingerprint):
                await connection.fetch(numbers[sql], *parameters)
        await respond(send)

    compare_asgi(f"ASGI, asyncpg, {hand.name}", by_hand, pool, loop)


async def _asyncpg_pool() -> Any:
    return await asyncpg.create_pool(min_size=1, max_size=1)


class Urls:
    """A module of URLs with one view."""

    def __init__(self, view: Callable[[HttpRequest], HttpResponse]) -> None:
        self.urlpatterns = [path("orders", view)]


def view_by_hand(hand: ByHand) -> Callable[[HttpRequest], HttpResponse]:
    def view(request: HttpRequest) -> HttpResponse:
        fingerprint = fingerprint_of("POST", request.path.encode(), request.body)
        message_id = f"all:{request.headers['idempotency-key']}"
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(hand.claim, [message_id, DESTINATION, fingerprint])
            assert cursor.fetchone()[0] == "claimed"
            for sql in [*hand.before_handler, UPDATE, *hand.after_handler]:
                cursor.execute(sql)
            for sql, parameters in hand.records(message_id, fingerprint):
                cursor.execute(sql, parameters)
        return HttpResponse(RESPONSE, status=201, content_type="application/json")

    return view


def view_in_django(_request: HttpRequest) -> HttpResponse:
    with connection.cursor() as cursor:
        cursor.execute(UPDATE)
    return HttpResponse(RESPONSE, status=201, content_type="application/json")


def compare_django(hands: list[ByHand]) -> None:
    database = {"ENGINE": "django.db.backends.postgresql", "NAME": os.environ["PGDATABASE"]}
    settings.configure(
        ALLOWED_HOSTS=["*"],
        DATABASES={"default": database},
        IDEM_HTTP={
            "DESTINATION": DESTINATION,
            "SCOPE": Scope.single_tenant(),
            "APPLIES_TO": ["/orders"],
        },
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
    for hand in hands:
        by_hand = side(view_by_hand(hand), [])
        compare(f"Django, {hand.name}", by_hand, side(view_in_django, package))
    connection.close()


def main() -> None:
    prepare()
    for compare_driver, hand in itertools.product((compare_psycopg, compare_asyncpg), BY_HAND):
        with contextlib.closing(asyncio.new_event_loop()) as loop:
            compare_driver(hand, loop)
    compare_django(BY_HAND)


if __name__ == "__main__":
    main()
