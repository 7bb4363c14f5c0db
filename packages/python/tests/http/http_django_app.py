"""The Django service of the tests. In a process of its own, it serves until it is killed.

The handler has the same headers as that of http_app.py, and some of its own.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import socketserver
import threading
import time
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import connections as _configured  # noqa: F401
import psycopg
from django.core.handlers.wsgi import WSGIHandler
from django.db import DatabaseError, OperationalError, connections, transaction
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.test.utils import override_settings
from django.urls import path
from forks import Say
from http_config import Config, State, config_of, listen

from idem_pg import OnUnknown
from idem_pg.http import Scope
from idem_pg.http.django import (
    IdempotencyMiddleware,
    keep_writes,
    request_lease,
    request_transaction,
)


class Middleware(IdempotencyMiddleware):
    """The middleware with a class attribute. The other options are in the setting IDEM_HTTP."""

    methods = ("POST", "PATCH")


class Service:
    """The views, as a module of URLs."""

    def __init__(self, config: Config, state: State) -> None:
        self.config = config
        self.state = state
        self.urlpatterns = [path("orders", self.handle), path("others", self.handle)]

    def handle(self, request: HttpRequest) -> HttpResponse:
        self.state.running += 1
        try:
            return self._work(request)
        finally:
            self.state.running -= 1

    def _work(self, request: HttpRequest) -> HttpResponse:
        self.state.runs += 1
        run = self.state.runs
        headers = request.headers
        body = request.body.decode()
        if self.config.mode == "lease":
            self._work_outside(request, body)
        else:
            self._write(headers, body)
            self._hold(headers)
        self._fail(headers)
        if ended := self._end(headers):
            return HttpResponse(ended, status=500)
        if "x-raise" in headers:
            raise ValueError("the view fails")
        if "x-not-found" in headers:
            raise Http404
        if "x-hook" in headers:
            transaction.on_commit(_raise, using=self.config.name)
        if "x-keep-writes" in headers:
            keep_writes(request)
        is_protected = request.method in self.config.methods and "idempotency-key" in headers
        if is_protected and self.config.mode == "transaction":
            assert request_transaction(request).connection.in_atomic_block
        extra = {"x-run": str(run), "x-charges": str(self.state.charges)}
        return _response(headers, f"run {run}, {body}", extra)

    def _work_outside(self, request: HttpRequest, body: str) -> None:
        assert not connections[self.config.name].in_atomic_block
        headers = request.headers
        if "x-charge" in headers:
            self._charge_once(request, body)
        self._hold(headers)
        if "x-charge-late" in headers:
            self._charge_once(request, body)
        if "x-charge-atomic" in headers:
            with transaction.atomic(using=self.config.name):
                self._charge_once(request, body)
        if "x-until-lost" in headers:
            while not request_lease(request).is_lost:
                time.sleep(0.005)
        if "x-no-commit" in headers:
            transaction.set_autocommit(False, using=self.config.name)
        # The connection can be one that the test has terminated.
        for attempt in range(3):
            try:
                with transaction.atomic(using=self.state.source or self.config.name):
                    self._write(headers, body)
                return
            except OperationalError:
                if attempt == 2:
                    raise

    def _charge_once(self, request: HttpRequest, body: str) -> None:
        charged = request_lease(request).once(
            "charge", {"body": body}, self._charge, on_unknown=OnUnknown.REPEAT
        )
        assert charged == "charged"

    def _charge(self, _key: str) -> str:
        self.state.charges += 1
        return "charged"

    def _write(self, headers: Any, body: str) -> None:
        if "x-end" in headers and self.config.mode == "lease":
            return
        for _ in range(2):
            self._execute(f"INSERT INTO {self.config.table} VALUES (%s)", [body])
        if "x-lock" in headers:
            self._execute("SELECT pg_advisory_xact_lock(%s)", [int(headers["x-lock"])])

    def _hold(self, headers: Any) -> None:
        if "x-hold" in headers:
            self.state.holding += 1
            self.state.gate.acquire()
            self.state.holding -= 1

    def _end(self, headers: Any) -> str | None:
        """Executes the statements of x-end. Returns the error of one that fails."""
        for statement in headers.get("x-end", "").split(";"):
            try:
                if statement:
                    self._execute(statement, [])
            except DatabaseError as error:
                if "x-ignore-end" not in headers:
                    return str(error)
        return None

    def _fail(self, headers: Any) -> None:
        using = self.config.name
        if "x-fail" in headers:
            with contextlib.suppress(DatabaseError):
                self._execute("SELECT 1 / 0", [])
        if "x-fail-nested" in headers:
            with contextlib.suppress(DatabaseError), transaction.atomic(using, savepoint=False):
                self._execute("SELECT 1 / 0", [])
        if "x-set-rollback" in headers:
            transaction.set_rollback(True, using=using)

    def _execute(self, sql: str, parameters: list[Any]) -> None:
        with connections[self.state.source or self.config.name].cursor() as cursor:
            cursor.execute(sql, parameters or None)


def _raise() -> None:
    raise ValueError("the function of on_commit fails")


def _response(headers: Any, text: str, extra: dict[str, str]) -> Any:
    status = int(headers.get("x-status", "201"))
    text += "x" * int(headers.get("x-size", "0"))
    response: Any = HttpResponse(text, status=status)
    if "x-stream" in headers:
        response = StreamingHttpResponse(_pieces(text), status=status)
    elif "x-stream-async" in headers:
        response = StreamingHttpResponse(_async_pieces(text), status=status)
    elif "x-stream-fails" in headers:
        response = StreamingHttpResponse(_failing_pieces(), status=status)
    for name, value in extra.items():
        response[name] = value
    response["x-other"] = "kept"
    response["content-type"] = "text/plain"
    response.set_cookie("session", "secret")
    return response


def _pieces(text: str) -> Iterator[bytes]:
    for start in range(0, len(text), 100):
        yield text[start : start + 100].encode()


async def _async_pieces(text: str) -> AsyncIterator[bytes]:
    for piece in _pieces(text):
        yield piece


def _failing_pieces() -> Iterator[bytes]:
    yield b"first"
    raise OSError("the storage fails")


class PauseBeforeResponse:
    """Waits forever before the first byte of a response to a request with the header x-pause."""

    def __init__(self, app: Any) -> None:
        self.app = app

    def __call__(self, environ: Any, start_response: Any) -> Any:
        response = self.app(environ, start_response)
        if "HTTP_X_PAUSE" in environ:
            threading.Event().wait()
        return response


class Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    address_family = socket.AF_INET

    def process_request_thread(self, *request: Any) -> None:
        """Closes the connections of the thread.

        wsgiref does not close the response to a client that has disconnected, and only the end of
        a response closes them.
        """
        try:
            super().process_request_thread(*request)
        finally:
            connections.close_all()


class QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing."""


def _options(config: Config) -> dict[str, Any]:
    scope = Scope.single_tenant()
    if config.by_tenant:
        scope = Scope.by(lambda request: request.headers.get("x-tenant"))
    options: dict[str, Any] = {
        "DESTINATION": config.destination,
        "MODE": config.mode,
        "LEASE": timedelta(milliseconds=config.lease_ms),
        "SCOPE": scope,
        "APPLIES_TO": ["/orders", "/others"],
        "USING": config.name,
        "METHODS": config.methods,
        "RESPONSE_LIMIT": config.response_limit,
        "REQUEST_LIMIT": config.request_limit,
        "REQUIRED": config.required,
    }
    if config.kept_headers is not None:
        options["KEEP_HEADERS"] = config.kept_headers.__contains__
    return options


def direct_alias(config: Config) -> str:
    """Returns the alias of a connection that does not pass a proxy."""
    return f"{config.name}-direct"


def _isolation(config: Config) -> dict[str, Any]:
    if config.isolation is None:
        return {}
    return {"isolation_level": psycopg.IsolationLevel[config.isolation.replace(" ", "_")]}


@contextlib.contextmanager
def _database(config: Config) -> Iterator[None]:
    """Adds the aliases of this service. A service in another process is only configured once."""
    databases: dict[str, Any] = connections.databases
    direct = {
        **databases["default"],
        "USER": config.user,
        "AUTOCOMMIT": not config.manual_commit,
        "NAME": config.database,
        "OPTIONS": {"application_name": config.name, **_isolation(config)},
    }
    databases[direct_alias(config)] = direct
    databases[config.name] = {**direct, "HOST": config.host, "PORT": str(config.port)}
    try:
        yield
    finally:
        del databases[config.name], databases[direct_alias(config)]


def serve(config: Config, state: State, listener: socket.socket) -> None:
    """Serves until `state.ended` is set. A process has at most one such service at a time."""
    logging.getLogger("django.request").setLevel(logging.CRITICAL)
    middleware = "Middleware" if config.methods == Config.methods else "IdempotencyMiddleware"
    with (
        _database(config),
        override_settings(
            ALLOWED_HOSTS=["*"],
            IDEM_HTTP=_options(config),
            MIDDLEWARE=[f"{__name__}.{middleware}"],
            ROOT_URLCONF=Service(config, state),
        ),
        Server(listener.getsockname(), QuietHandler, bind_and_activate=False) as server,
    ):
        server.socket.close()
        server.socket = listener
        server.server_name, server.server_port = listener.getsockname()
        server.setup_environ()
        server.set_app(PauseBeforeResponse(WSGIHandler()))
        serving = threading.Thread(target=server.serve_forever, args=(0.005,))
        serving.start()
        state.is_serving.set()
        while not state.ended.is_set():
            serving.join(0.005)
        server.shutdown()


def main(say: Say, config_text: str) -> None:
    listener = listen()
    say(str(listener.getsockname()[1]))
    serve(config_of(config_text), State(), listener)
