"""Transactions of their own, for leases and external calls, which commit before the work goes on.

Only these and the middlewares of HTTP open connections and commit. The user passes a pool, an
engine, or a function that returns a context manager.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, TypeVar

from .errors import IdemError
from .executors import (
    SYNCHRONOUS,
    is_error_of_closed,
    kind_of,
    raise_caused,
    translated,
    type_name,
)
from .functions import Functions
from .idem import AsyncIdem
from .lease_rules import RENEWAL_THREAD
from .statements import Statement

T = TypeVar("T")
Transactions = Callable[[], AbstractContextManager[Any]]
Work = Callable[[Functions], Awaitable[T]]

ATTEMPTS = 6
"""The number of attempts of a short transaction whose connection is lost."""
_FIRST_DELAY, _LONGEST_DELAY = 0.05, 1.0


_READ_COMMITTED: Statement[None] = Statement(
    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED", (), lambda _: None
)


class AsyncTransactions:
    """Opens transactions of an asynchronous driver."""

    are_isolated = False
    """Whether the server has said that they are not READ COMMITTED, as a function needs it."""

    def __init__(self, open_transaction: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._open = open_transaction

    def __call__(self) -> AbstractAsyncContextManager[Any]:
        return self._open()


class BlockingTransactions(AsyncTransactions):
    """Transactions of a synchronous driver, for coroutines that block: see `blocking.py`."""

    def __init__(self, source: Any) -> None:
        self._transactions = transactions(source)
        super().__init__(self._opened)

    @contextlib.asynccontextmanager
    async def _opened(self) -> AsyncIterator[Any]:
        with self._transactions() as connection:
            yield connection


def transactions(source: Any) -> Transactions:
    """Returns a function that opens transactions.

    `source` is a ConnectionPool of psycopg, an Engine or sessionmaker of SQLAlchemy, the connection
    of Django, or a function. The function returns a context manager, which yields a connection or
    session, commits at its normal end and rolls back after an exception.
    """
    match kind_of(source):
        case "psycopg.Pool":
            return source.connection  # type: ignore[no-any-return]
        case "sqlalchemy.Engine" | "sqlalchemy.sessionmaker":
            return source.begin  # type: ignore[no-any-return]
        case "django.Connection":
            return _of_django(source.alias)
        case None if callable(source):
            return source  # type: ignore[no-any-return]
    raise _no_source(source, "a ConnectionPool of psycopg, an Engine or sessionmaker of SQLAlchemy")


def async_transactions(source: Any) -> AsyncTransactions:
    """Returns a function that opens transactions.

    `source` is a Pool of asyncpg, an AsyncConnectionPool of psycopg, an AsyncEngine or
    async_sessionmaker of SQLAlchemy, or a function. The function returns an asynchronous context
    manager, which yields a connection or session, commits at its normal end and rolls back after an
    exception. A function that does not commit is not detected.
    """
    if isinstance(source, AsyncTransactions):
        return source
    match kind_of(source):
        case "psycopg.AsyncPool":
            return AsyncTransactions(source.connection)
        case "sqlalchemy.AsyncEngine" | "sqlalchemy.async_sessionmaker":
            return AsyncTransactions(source.begin)
        case "asyncpg.Pool":
            return AsyncTransactions(_of_asyncpg(source))
        case None if callable(source):
            return AsyncTransactions(source)
    raise _no_source(source, "a Pool of asyncpg, an AsyncConnectionPool, an AsyncEngine")


def blocking_transactions(source: Any) -> BlockingTransactions:
    """Returns the transactions of a source, see `transactions`, for coroutines that block."""
    return source if isinstance(source, BlockingTransactions) else BlockingTransactions(source)


def functions_of(opened: AsyncTransactions, connection: Any) -> Functions:
    """Returns idem's functions on a connection of the same kind as these transactions have."""
    if isinstance(opened, BlockingTransactions):
        return Functions(connection, SYNCHRONOUS, "Idem")
    return AsyncIdem(connection)


async def in_transaction(opened: AsyncTransactions, work: Work[T]) -> T:
    """Runs `work` in a transaction of its own, READ COMMITTED if a function of idem needs it.

    Raises IdemError for an error of the server and for a lost connection.
    """
    is_isolated, failed = opened.are_isolated, None
    try:
        async with opened() as connection:
            idem = functions_of(opened, connection)
            try:
                if is_isolated:
                    await idem.run(_READ_COMMITTED)
                return await work(idem)
            except IdemError as error:
                failed = error
                raise
    except Exception as error:
        # The rollback over a lost connection fails too. The first error tells more.
        found = failed or translated(error)
        if is_isolated or failed is None or failed.sqlstate != "25000":
            raise_caused(found, error)
    opened.are_isolated = True
    return await in_transaction(opened, work)


async def short_transaction(opened: AsyncTransactions, work: Work[T]) -> T:
    """Runs `work` in a transaction of its own, and again after a lost connection.

    `work` must be safe to repeat, because a commit can have succeeded although its reply was lost.
    """
    return await retried(opened, lambda: in_transaction(opened, work), is_retryable)


async def retried(
    opened: AsyncTransactions,
    attempt: Callable[[], Awaitable[T]],
    may_retry: Callable[[Exception], bool],
    delays: Iterator[float] | None = None,
) -> T:
    """Runs a step that is safe to repeat, and again after an error that `may_retry` accepts."""
    for delay in delays or retry_delays():
        try:
            return await attempt()
        except Exception as error:
            if delay == 0 or not may_retry(error):
                raise
        if isinstance(opened, BlockingTransactions):
            time.sleep(delay)  # noqa: ASYNC251
        else:
            await asyncio.sleep(delay)
    raise AssertionError("the last delay ends the loop")


def retry_delays(attempts: int | None = None) -> Iterator[float]:
    """Returns the delay after each attempt, with jitter. 0 follows the last attempt."""
    delay = _FIRST_DELAY
    for _ in range((attempts or ATTEMPTS) - 1):
        yield delay / 2 + random.random() * delay / 2  # noqa: S311
        delay = min(delay * 2, _LONGEST_DELAY)
    yield 0.0


def is_retryable(error: Exception) -> bool:
    """Returns whether a transaction that failed with this error can succeed later."""
    found = translated(error)
    return isinstance(found, IdemError) and found.retryable


def _of_django(alias: str) -> Transactions:
    @contextlib.contextmanager
    def opened() -> Iterator[Any]:
        from django.db import connections, transaction

        connection = connections[alias]
        try:
            _prepare_for_atomic(connection)
            with transaction.atomic(using=alias, durable=True):
                yield connection
        finally:
            # Each thread has a connection of its own, and Django closes that of a thread that
            # handles requests only.
            if threading.current_thread().name == RENEWAL_THREAD:
                connection.close()

    return opened


def _prepare_for_atomic(connection: Any) -> None:
    """Fails for a connection of Django that does not commit, and drops one that is lost."""
    if connection.in_atomic_block:
        return
    # A connection whose loss a statement has shown rejects all others, until Django closes it at
    # the end of the request.
    if getattr(connection.connection, "closed", False):
        connection.close()
    if not connection.get_autocommit():
        # The end of `atomic` would not commit.
        from django.core.exceptions import ImproperlyConfigured

        raise ImproperlyConfigured(f"the connection {connection.alias!r} is not in autocommit mode")


def _of_asyncpg(pool: Any) -> Callable[[], AbstractAsyncContextManager[Any]]:
    @contextlib.asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        async with pool.acquire() as connection:
            try:
                async with connection.transaction():
                    yield connection
            except Exception as error:
                if is_error_of_closed(error, connection):
                    raise IdemError(str(error), None, None) from error
                raise

    return opened


def _no_source(source: Any, wanted: str) -> TypeError:
    return TypeError(
        f"{wanted}, or a function that opens a transaction is needed, not {type_name(source)}"
    )
