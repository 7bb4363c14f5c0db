"""Transactions of each supported driver and ORM, and the same functions over all of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

import asyncpg
import django
import psycopg
import sqlalchemy
from django.conf import settings
from psycopg import AsyncRawCursor, RawCursor
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from idem_pg import AsyncIdem, Idem

DATABASE = {
    "ENGINE": "django.db.backends.postgresql",
    "HOST": os.environ.get("PGHOST"),
    "PORT": os.environ.get("PGPORT", ""),
    "USER": os.environ.get("PGUSER"),
    "NAME": os.environ.get("PGDATABASE"),
}
SERIALIZABLE = DATABASE | {"OPTIONS": {"isolation_level": psycopg.IsolationLevel.SERIALIZABLE}}
settings.configure(
    DATABASES={"default": DATABASE, "serializable": SERIALIZABLE},
    USE_TZ=True,
)
django.setup()

ENGINE = sqlalchemy.create_engine("postgresql+psycopg://", poolclass=sqlalchemy.NullPool)
PSYCOPG = "postgresql+psycopg://"
ASYNCPG = "postgresql+asyncpg://"


@contextlib.contextmanager
def psycopg_cursor() -> Iterator[Any]:
    with psycopg.connect() as connection, connection.cursor() as cursor:
        yield cursor


@contextlib.contextmanager
def psycopg_with_other_rows() -> Iterator[Any]:
    connection = psycopg.Connection.connect(row_factory=dict_row, cursor_factory=RawCursor)
    with connection:
        yield connection


@contextlib.contextmanager
def sqlalchemy_session() -> Iterator[Any]:
    with Session(ENGINE) as session, session.begin():
        yield session


@contextlib.contextmanager
def sqlalchemy_scoped_session() -> Iterator[Any]:
    session = scoped_session(sessionmaker(ENGINE))
    with session.begin():
        yield session
    session.remove()


@contextlib.contextmanager
def django_connection() -> Iterator[Any]:
    from django.db import connection, transaction

    with transaction.atomic():
        yield connection
    connection.close()


@contextlib.asynccontextmanager
async def psycopg_async() -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect() as connection:
        yield connection


@contextlib.asynccontextmanager
async def psycopg_async_cursor() -> AsyncIterator[Any]:
    async with psycopg_async() as connection, connection.cursor() as cursor:
        yield cursor


@contextlib.asynccontextmanager
async def psycopg_async_with_other_rows() -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(
        row_factory=dict_row, cursor_factory=AsyncRawCursor
    ) as connection:
        yield connection


@contextlib.asynccontextmanager
async def asyncpg_with_codecs() -> AsyncIterator[Any]:
    async with asyncpg_connection() as connection:
        for name in ("json", "jsonb"):
            await connection.set_type_codec(
                name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog"
            )
        yield connection


@contextlib.asynccontextmanager
async def asyncpg_connection() -> AsyncIterator[Any]:
    connection = await asyncpg.connect()
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def asyncpg_pool() -> AsyncIterator[Any]:
    async with (
        asyncpg.create_pool(min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        yield connection


@contextlib.asynccontextmanager
async def sqlalchemy_async(url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(url, poolclass=sqlalchemy.NullPool)
    async with engine.begin() as connection:
        yield connection


@contextlib.asynccontextmanager
async def sqlalchemy_async_session() -> AsyncIterator[Any]:
    engine = create_async_engine(ASYNCPG, poolclass=sqlalchemy.NullPool)
    async with AsyncSession(engine) as session, session.begin():
        yield session


SYNC: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "psycopg.Connection": psycopg.connect,
    "psycopg.Cursor": psycopg_cursor,
    "psycopg with other rows": psycopg_with_other_rows,
    "sqlalchemy.Connection": ENGINE.begin,
    "sqlalchemy.Session": sqlalchemy_session,
    "sqlalchemy.scoped_session": sqlalchemy_scoped_session,
    "django": django_connection,
}

ASYNC: dict[str, Callable[[], AbstractAsyncContextManager[Any]]] = {
    "psycopg.AsyncConnection": psycopg_async,
    "psycopg.AsyncCursor": psycopg_async_cursor,
    "psycopg async with other rows": psycopg_async_with_other_rows,
    "asyncpg.Connection": asyncpg_connection,
    "asyncpg with codecs": asyncpg_with_codecs,
    "asyncpg.PoolConnectionProxy": asyncpg_pool,
    "sqlalchemy.AsyncConnection over psycopg": lambda: sqlalchemy_async(PSYCOPG),
    "sqlalchemy.AsyncConnection over asyncpg": lambda: sqlalchemy_async(ASYNCPG),
    "sqlalchemy.AsyncSession": sqlalchemy_async_session,
}

Work = Callable[[Any, Callable[[str], Any]], Any]


def in_transaction(name: str, work: Work) -> Any:
    """Runs `work(idem, execute)` in a transaction, and commits.

    Methods of an `AsyncIdem` look like those of an `Idem`: a loop runs each of them to its end.
    `execute` executes a statement without parameters with the driver itself.
    """
    if name in SYNC:
        with SYNC[name]() as connection:
            return work(Idem(connection), lambda sql: _execute(connection, sql))
    with asyncio.Runner() if hasattr(asyncio, "Runner") else _Runner() as runner:
        transaction = ASYNC[name]()
        connection = runner.run(transaction.__aenter__())
        idem = _Blocking(AsyncIdem(connection), runner)
        try:
            result = work(idem, lambda sql: runner.run(_execute_async(connection, sql)))
        except BaseException as error:
            runner.run(transaction.__aexit__(type(error), error, error.__traceback__))
            raise
        runner.run(transaction.__aexit__(None, None, None))
        return result


class _Runner:
    """The class `asyncio.Runner`, which Python 3.10 does not have."""

    def __enter__(self) -> _Runner:
        self._loop = asyncio.new_event_loop()
        return self

    def run(self, coroutine: Any) -> Any:
        return self._loop.run_until_complete(coroutine)

    def __exit__(self, *_: object) -> None:
        self._loop.close()


class _Blocking:
    def __init__(self, idem: AsyncIdem, runner: Any) -> None:
        self._idem = idem
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._idem, name)
        return lambda *args, **options: self._runner.run(method(*args, **options))


def _execute(connection: Any, sql: str) -> None:
    if hasattr(connection, "vendor"):
        with connection.cursor() as cursor:
            cursor.execute(sql)
    elif type(connection).__module__.startswith("sqlalchemy"):
        connection.execute(sqlalchemy.text(sql))
    else:
        connection.execute(sql)


async def _execute_async(connection: Any, sql: str) -> None:
    if type(connection).__module__.startswith("sqlalchemy"):
        await connection.execute(sqlalchemy.text(sql))
    else:
        await connection.execute(sql)
