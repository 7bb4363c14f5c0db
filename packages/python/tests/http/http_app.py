"""The service of the tests: an application of Starlette or FastAPI, with the middleware.

Request headers control what the handler does. They are not part of the fingerprint, so the handler
can treat a repeated request differently. In a process of its own, it serves until it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import uvicorn
from forks import Say
from http_config import Config, State, config_of, listen
from http_variants import VARIANTS
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from idem_pg import OnUnknown
from idem_pg.http import (
    IdempotencyMiddleware,
    Options,
    Scope,
    asgi,
    keep_writes,
    request_lease,
    request_transaction,
)
from idem_pg.transactions import async_transactions

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
PATHS = ("/orders", "/others")


@contextlib.asynccontextmanager
async def opened(config: Config) -> AsyncIterator[Any]:
    """Opens the pool, engine or session factory of a driver."""
    match config.driver:
        case "asyncpg":
            async with _asyncpg_pool(config) as pool:
                yield pool
        case "psycopg":
            async with _psycopg_pool(config) as pool:
                yield pool
        case _:
            async with _of_sqlalchemy(config) as source:
                yield source


# A process that is killed starts faster without the drivers that it does not use.
def _asyncpg_pool(config: Config) -> Any:
    import asyncpg

    isolation = {"default_transaction_isolation": config.isolation} if config.isolation else {}
    return asyncpg.create_pool(
        host=config.host,
        port=config.port,
        user=config.user,
        database=config.database,
        ssl=False,
        min_size=0,
        max_size=config.pool_size,
        server_settings={"application_name": config.name, **isolation},
        timeout=10,
    )


def _psycopg_pool(config: Config) -> Any:
    import psycopg
    import psycopg_pool

    async def isolate(connection: psycopg.AsyncConnection) -> None:
        if config.isolation is not None:
            level = psycopg.IsolationLevel[config.isolation.replace(" ", "_")]
            await connection.set_isolation_level(level)

    return psycopg_pool.AsyncConnectionPool(
        kwargs={
            "host": config.host,
            "port": config.port,
            "user": config.user,
            "dbname": config.database,
            "sslmode": "disable",
            "application_name": config.name,
            "autocommit": config.autocommit,
        },
        min_size=0,
        max_size=config.pool_size,
        timeout=config.pool_timeout_s,
        configure=isolate,
        open=False,
    )


@contextlib.asynccontextmanager
async def _of_sqlalchemy(config: Config) -> AsyncIterator[Any]:
    import sqlalchemy
    from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

    library = config.driver.rpartition("+")[2]
    query = {"host": config.host, "port": str(config.port)}
    url = sqlalchemy.URL.create(
        f"postgresql+{library}", config.user, database=config.database, query=query
    )
    name = {"application_name": config.name}
    arguments: dict[str, Any] = {"server_settings": name} if library == "asyncpg" else {**name}
    isolation = "AUTOCOMMIT" if config.autocommit else config.isolation
    options = {"isolation_level": isolation} if isolation else {}
    engine = create_async_engine(url, connect_args=arguments, pool_size=config.pool_size, **options)
    try:
        yield async_sessionmaker(engine) if "session" in config.driver else engine
    finally:
        await engine.dispose()


async def execute(connection: Any, sql: str) -> None:
    if type(connection).__module__.startswith("sqlalchemy"):
        import sqlalchemy

        await connection.execute(sqlalchemy.text(sql))
    else:
        await connection.execute(sql)


@contextlib.asynccontextmanager
async def outside(source: Any) -> AsyncIterator[Any]:
    """Opens a transaction outside of the request."""
    async with async_transactions(source)() as connection:
        yield connection


class Service:
    """The handler of all routes."""

    def __init__(self, config: Config, state: State) -> None:
        self.config = config
        self.state = state

    async def handle(self, request: Request) -> Response:
        self.state.running += 1
        try:
            return await self._work(request)
        finally:
            self.state.running -= 1

    async def _work(self, request: Request) -> Response:
        self.state.runs += 1
        run = self.state.runs
        headers = request.headers
        body = (await request.body()).decode()
        if "idem" not in request.scope or self.config.mode == "lease":
            await self._work_outside(request, body)
        else:
            ended = await self._work_inside(request, body)
            if ended is not None:
                return Response(ended, 500)
        if "x-raise" in headers:
            raise ValueError("the handler fails")
        return self._response(request, f"run {run}, {body}", run)

    async def _work_inside(self, request: Request, body: str) -> str | None:
        headers = request.headers
        connection = request_transaction(request).connection
        await self._insert(connection, body)
        await self._insert(connection, body)
        await self._lock(request, connection)
        await self._hold(request)
        if "x-fail" in headers:
            with contextlib.suppress(Exception):
                await execute(connection, "SELECT 1 / 0")
        if "x-end" in headers:
            for statement in headers["x-end"].split(";"):
                try:
                    await self._end(connection, statement.strip())
                except Exception as error:
                    if "x-ignore-end" not in headers:
                        return f"{type(error).__name__}: {error}"
        if "x-keep-connection" in headers:
            self.state.kept.append(request_transaction(request))
        if "x-keep-writes" in headers:
            keep_writes(request)
        return None

    async def _end(self, connection: Any, statement: str) -> None:
        if statement.startswith("method "):
            await getattr(connection, statement.removeprefix("method "))()
        else:
            await execute(connection, statement)

    async def _work_outside(self, request: Request, body: str) -> None:
        if "x-charge" in request.headers:
            await self._charge_once(request, body)
        await self._hold(request)
        if "x-charge-late" in request.headers:
            await self._charge_once(request, body)
        # The pools can have connections that the test has terminated.
        for attempt in range(3):
            try:
                async with outside(self.state.source) as connection:
                    await self._insert(connection, body)
                    await self._insert(connection, body)
                    await self._lock(request, connection)
                return
            except Exception:
                if attempt == 2:
                    raise

    async def _charge_once(self, request: Request, body: str) -> None:
        charged = await request_lease(request).once(
            "charge", {"body": body}, self._charge, on_unknown=OnUnknown.REPEAT
        )
        assert charged == "charged"

    async def _charge(self, _key: str) -> str:
        self.state.charges += 1
        return "charged"

    async def _hold(self, request: Request) -> None:
        if "x-hold" in request.headers:
            self.state.holding += 1
            try:
                while not self.state.gate.acquire(blocking=False):
                    await asyncio.sleep(0.005)
            finally:
                self.state.holding -= 1

    async def _lock(self, request: Request, connection: Any) -> None:
        if "x-lock" in request.headers:
            lock = int(request.headers["x-lock"])
            await execute(connection, f"SELECT pg_advisory_xact_lock({lock})")

    async def _insert(self, connection: Any, body: str) -> None:
        text = body.replace("'", "''")
        await execute(connection, f"INSERT INTO {self.config.table} VALUES ('{text}')")

    def _response(self, request: Request, text: str, run: int) -> Response:
        headers = request.headers
        status = int(headers.get("x-status", "201"))
        text += "x" * int(headers.get("x-size", "0"))
        sent = {
            "x-run": str(run),
            "x-charges": str(self.state.charges),
            "x-other": "kept",
            "set-cookie": "session=secret",
            "content-type": "text/plain",
            "date": "Thu, 01 Jan 1970 00:00:00 GMT",
            "x-hop": "1",
            "connection": "x-hop",
        }
        background = BackgroundTask(self._after) if "x-background" in headers else None
        if "x-stream" in headers:
            return StreamingResponse(_pieces(text), status, sent, background=background)
        response = Response(text, status, sent, background=background)
        if "x-bad-header" in headers:
            response.raw_headers.append((b"x-bad", b"1\r\nset-cookie: a=b"))
        return response

    async def _after(self) -> None:
        self.state.background += 1


async def _pieces(text: str) -> AsyncIterator[bytes]:
    for start in range(0, len(text), 100):
        yield text[start : start + 100].encode()


class PauseBeforeResponse:
    """Waits forever before the first byte of a response to a request with the header x-pause."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def paused(message: Any) -> None:
            await asyncio.Event().wait()
            await send(message)

        is_paused = any(name == b"x-pause" for name, _ in scope.get("headers", ()))
        await self.app(scope, receive, paused if is_paused else send)


def build(config: Config, state: State) -> Any:
    """Returns the application with its middleware."""
    service = Service(config, state)
    app: Any
    if config.framework == "fastapi":
        from fastapi import FastAPI

        app = FastAPI()
        for path in PATHS:
            app.add_api_route(path, service.handle, methods=METHODS, response_model=None)
    else:
        app = Starlette(routes=[Route(path, service.handle, methods=METHODS) for path in PATHS])
    kept: dict[str, Any] = {}
    if config.kept_headers is not None:
        kept["keep_headers"] = config.kept_headers.__contains__
    scope = Scope.single_tenant()
    if config.by_tenant:
        scope = Scope.by(lambda request: request.headers.get("x-tenant"))
    options = Options(
        destination=config.destination,
        scope=scope,
        applies_to=PATHS,
        mode=config.mode,
        methods=config.methods,
        required=config.required,
        request_limit=config.request_limit,
        response_limit=config.response_limit,
        lease=timedelta(milliseconds=config.lease_ms),
        **kept,
    )
    app.add_middleware(
        IdempotencyMiddleware, source=state.source, options=options, running=state.requests
    )
    return PauseBeforeResponse(app)


@contextlib.asynccontextmanager
async def serving(config: Config, state: State, listener: Any) -> AsyncIterator[None]:
    """Serves inside the block. Unlike `uvicorn.Server.serve`, it starts and stops at once."""
    async with opened(config) as state.source:
        settings = uvicorn.Config(
            build(config, state), log_level="critical", lifespan="off", ws="none"
        )
        settings.load()
        server = uvicorn.Server(settings)
        server.lifespan = settings.lifespan_class(settings)
        await server.startup(sockets=[listener])
        try:
            yield
        finally:
            await _stop(server)


async def _stop(server: uvicorn.Server) -> None:
    for listening in server.servers:
        listening.close()
    for connection in list(server.server_state.connections):
        connection.shutdown()
    if tasks := server.server_state.tasks.copy():
        _, late = await asyncio.wait(tasks, timeout=1)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)


async def serve(config: Config, state: State, listener: Any) -> None:
    """Serves until `state.ended` is set."""
    async with serving(config, state, listener):
        state.is_serving.set()
        await state.ended.wait()


def main(say: Say, config_text: str) -> None:
    config = config_of(config_text)
    setattr(asgi, "AsgiTransactionAttempt", VARIANTS[config.variant])  # noqa: B010
    listener = listen()
    say(str(listener.getsockname()[1]))
    asyncio.run(serve(config, State(), listener))
