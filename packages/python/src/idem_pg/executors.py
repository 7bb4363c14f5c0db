"""Executes statements in the user's transaction, with the driver or ORM that the user has.

This module imports no driver. It recognizes an object by the module and the name of its classes,
and imports a driver only after the user has passed one of its objects.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

from .errors import IdemError
from .statements import Rows

Execute = Callable[[str, tuple[Any, ...]], Awaitable[Rows]]
Kinds = Mapping[str, Callable[[Any], Execute]]

_PARAMETER = re.compile(r"\$(\d+)")


def executor(connection: Any, kinds: Kinds, wanted: str) -> Execute:
    """Returns a coroutine function that executes a statement on this connection.

    Raises TypeError for an object that is no connection, cursor or session of these kinds.
    """
    make = kinds.get(kind_of(connection) or "")
    if make is None:
        raise TypeError(
            f"{wanted} needs the connection or session of a transaction, not "
            f"{type_name(connection)}. A pool or an engine would execute each statement on another "
            "connection."
        )
    return make(connection)


_KINDS = {
    ("psycopg", "Connection"): "psycopg.Connection",
    ("psycopg", "Cursor"): "psycopg.Cursor",
    ("psycopg", "AsyncConnection"): "psycopg.AsyncConnection",
    ("psycopg", "AsyncCursor"): "psycopg.AsyncCursor",
    ("psycopg_pool", "ConnectionPool"): "psycopg.Pool",
    ("psycopg_pool", "AsyncConnectionPool"): "psycopg.AsyncPool",
    ("asyncpg", "Connection"): "asyncpg.Connection",
    ("asyncpg", "PoolConnectionProxy"): "asyncpg.Connection",
    ("asyncpg", "Pool"): "asyncpg.Pool",
    ("sqlalchemy", "Connection"): "sqlalchemy.Connection",
    ("sqlalchemy", "Session"): "sqlalchemy.Session",
    ("sqlalchemy", "scoped_session"): "sqlalchemy.Session",
    ("sqlalchemy", "Engine"): "sqlalchemy.Engine",
    ("sqlalchemy", "sessionmaker"): "sqlalchemy.sessionmaker",
    ("sqlalchemy", "AsyncConnection"): "sqlalchemy.AsyncConnection",
    ("sqlalchemy", "AsyncSession"): "sqlalchemy.AsyncSession",
    ("sqlalchemy", "async_scoped_session"): "sqlalchemy.AsyncSession",
    ("sqlalchemy", "AsyncEngine"): "sqlalchemy.AsyncEngine",
    ("sqlalchemy", "async_sessionmaker"): "sqlalchemy.async_sessionmaker",
    ("django", "BaseDatabaseWrapper"): "django.Connection",
    ("django", "ConnectionProxy"): "django.Connection",
}


def kind_of(value: Any) -> str | None:
    """Returns the kind of a connection, session or pool, or None for every other object."""
    return _kind_of(type(value).__mro__)


@functools.lru_cache(maxsize=512)
def _kind_of(bases: tuple[type, ...]) -> str | None:
    for base in bases:
        package = base.__module__.partition(".")[0]
        if kind := _KINDS.get((package, base.__name__)):
            return kind
    return None


def type_name(value: Any) -> str:
    """Returns the name of the value's type, with its module."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


@functools.lru_cache(maxsize=512)
def _format(sql: str) -> str:
    """Returns the statement with the placeholders of psycopg and Django."""
    return _PARAMETER.sub("%s", sql)


@functools.lru_cache(maxsize=512)
def _text(sql: str) -> Any:
    """Returns the statement for SQLAlchemy."""
    from sqlalchemy import text

    return text(_PARAMETER.sub(r":p\1", sql))


def _named(parameters: tuple[Any, ...]) -> dict[str, Any]:
    return {f"p{number}": value for number, value in enumerate(parameters, 1)}


def _psycopg(connection: Any) -> Execute:
    # The user's connection can have another kind of cursors and of rows.
    from psycopg import Cursor
    from psycopg.rows import tuple_row

    owner = getattr(connection, "connection", connection)

    async def execute(sql: str, parameters: tuple[Any, ...]) -> Rows:
        with Cursor(owner, row_factory=tuple_row) as cursor:
            cursor.execute(_format(sql), parameters)
            return cursor.fetchall() if cursor.description else []

    return execute


def _async_psycopg(connection: Any) -> Execute:
    from psycopg import AsyncCursor
    from psycopg.rows import tuple_row

    owner = getattr(connection, "connection", connection)

    async def execute(sql: str, parameters: tuple[Any, ...]) -> Rows:
        async with AsyncCursor(owner, row_factory=tuple_row) as cursor:
            await cursor.execute(_format(sql), parameters)
            return await cursor.fetchall() if cursor.description else []

    return execute


def _asyncpg(connection: Any) -> Execute:
    async def execute(sql: str, parameters: tuple[Any, ...]) -> Rows:
        try:
            return _rows(await connection.fetch(sql, *parameters))
        except Exception as error:
            if is_error_of_closed(error, connection):
                raise IdemError(str(error), None, None) from error
            raise

    return execute


def _sqlalchemy(connection: Any) -> Execute:
    async def execute(sql: str, parameters: tuple[Any, ...]) -> Rows:
        result = connection.execute(_text(sql), _named(parameters))
        return _rows(result.fetchall() if result.returns_rows else [])

    return execute


def _async_sqlalchemy(connection: Any) -> Execute:
    async def execute(sql: str, parameters: tuple[Any, ...]) -> Rows:
        result = await connection.execute(_text(sql), _named(parameters))
        return _rows(result.fetchall() if result.returns_rows else [])

    return execute


def _django(connection: Any) -> Execute:
    async def execute(sql: str, parameters: tuple[Any, ...]) -> Rows:
        with connection.cursor() as cursor:
            cursor.execute(_format(sql), parameters)
            return _rows(cursor.fetchall() if cursor.description else [])

    return execute


SYNCHRONOUS: Kinds = {
    "psycopg.Connection": _psycopg,
    "psycopg.Cursor": _psycopg,
    "sqlalchemy.Connection": _sqlalchemy,
    "sqlalchemy.Session": _sqlalchemy,
    "django.Connection": _django,
}
"""The kinds whose coroutines block."""

ASYNCHRONOUS: Kinds = {
    "psycopg.AsyncConnection": _async_psycopg,
    "psycopg.AsyncCursor": _async_psycopg,
    "asyncpg.Connection": _asyncpg,
    "sqlalchemy.AsyncConnection": _async_sqlalchemy,
    "sqlalchemy.AsyncSession": _async_sqlalchemy,
}


def is_closed(connection: Any) -> bool:
    """Returns whether a driver's connection is lost. The errors of asyncpg do not always tell."""
    try:
        is_closed = getattr(connection, "closed", None)
        return bool(connection.is_closed() if is_closed is None else is_closed)
    except Exception:
        # The pool has taken the connection back.
        return True


def _rows(rows: Any) -> Rows:
    """Returns the rows of a driver, with a type."""
    fetched: Rows = rows
    return fetched


def raise_caused(error: Exception, cause: Exception) -> NoReturn:
    """Raises an error with its cause, unless it has one.

    An error that is its own cause would never end a search.
    """
    if error is cause:
        raise error
    raise error from error.__cause__ or cause


def hide_parameters(error: Exception) -> None:
    """Lets an error of SQLAlchemy print its statement without the parameters."""
    if hasattr(error, "hide_parameters"):
        error.hide_parameters = True


def is_error_of_closed(error: Exception, connection: Any) -> bool:
    """Returns whether an error of asyncpg without a SQLSTATE comes from a lost connection."""
    is_of_asyncpg = type(error).__module__.partition(".")[0] == "asyncpg"
    return is_of_asyncpg and not hasattr(error, "sqlstate") and is_closed(connection)


def translated(error: Exception, *, is_of_handler: bool = False) -> Exception:
    """Returns the IdemError for an error of the server or the connection, else the error itself.

    An error of the operating system is one of the connection, unless a handler has raised it.
    """
    # SQLAlchemy and Django raise errors of their own, with the error of the driver inside.
    found: BaseException | None = getattr(error, "driver_exception", None) or error
    while found is not None and not isinstance(found, IdemError):
        # asyncpg raises the error of the operating system if it cannot connect.
        if isinstance(found, OSError) and not is_of_handler:
            return IdemError(str(found), None, None)
        if hasattr(found, "sqlstate"):
            if found.sqlstate is None and not _is_lost(found):
                break
            return IdemError(str(found), found.sqlstate, reported(found, "hint", "message_hint"))
        found = found.__cause__ or getattr(found, "orig", None)
    if getattr(error, "connection_invalidated", False):
        # SQLAlchemy has seen that the connection is lost.
        return IdemError(str(getattr(error, "orig", None) or error), None, None)
    return error


def reported(error: BaseException, name: str, in_diagnostics: str) -> str | None:
    """Returns what the server reported with an error, or None.

    `name` is the member of an error of asyncpg, and `in_diagnostics` that of psycopg's diagnostics.
    """
    found: BaseException | None = error
    while found is not None:
        diagnostics = getattr(found, "diag", None)
        value = getattr(diagnostics, in_diagnostics, None) or getattr(found, name, None)
        if value is not None:
            return str(value)
        # SQLAlchemy 2.0 raises an error of its own that has only the SQLSTATE of asyncpg.
        found = found.__cause__
    return None


def _is_lost(error: BaseException) -> bool:
    """Returns whether an error of psycopg without a SQLSTATE is a lost connection.

    Other such errors are those of values that psycopg cannot send, or of a pool.
    """
    return type(error).__module__.partition(".")[0] == "psycopg" and any(
        base.__name__ in ("OperationalError", "InterfaceError") for base in type(error).__mro__
    )
