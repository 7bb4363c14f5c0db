"""What drivers and ORMs know about the connection and the transaction of a handler.

If the handler has caught the error of a statement, its transaction is aborted. PostgreSQL answers
the COMMIT with a ROLLBACK and no error, and so do the drivers. If the handler has ended a
transaction of SQLAlchemy, the transaction can still be open on the server.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import Any, TypeVar

from .errors import IdemError
from .executors import kind_of, raise_caused
from .functions import Functions
from .statements import Statement

T = TypeVar("T")

_ABORTED = "25P02"


async def run_last(idem: Functions, connection: Any, statement: Statement[T]) -> T:
    """Executes the last statement of a transaction. IdemError with 25P02 if it is aborted."""
    await _raise_if_known(connection)
    try:
        return await idem.run(statement)
    except IdemError as error:
        if error.sqlstate == _ABORTED:
            raise_caused(_aborted(""), error)
        raise


async def _raise_if_known(connection: Any) -> None:
    """Raises IdemError with 25P02 if the driver knows that its transaction is aborted."""
    info = getattr(await driver_of(connection), "info", None)
    # Django has more reasons to roll back than the server, and has an error of its own for them.
    if getattr(connection, "needs_rollback", False):
        return
    # asyncpg does not know it.
    if info is not None and info.transaction_status.name == "INERROR":
        raise _aborted(info.error_message)


async def driver_of(connection: Any) -> Any:
    """Returns the connection of the driver under a connection, cursor or session."""
    match kind_of(connection):
        case "psycopg.Cursor" | "psycopg.AsyncCursor" | "django.Connection":
            return connection.connection
        case "sqlalchemy.Connection":
            return connection.connection.driver_connection
        case "sqlalchemy.Session":
            return connection.connection().connection.driver_connection
        case "sqlalchemy.AsyncConnection":
            return (await connection.get_raw_connection()).driver_connection
        case "sqlalchemy.AsyncSession":
            return await driver_of(await connection.connection())
    return connection


def has_ended(connection: Any) -> bool:
    """Returns whether the transaction has ended for SQLAlchemy, because the handler ended it.

    The server has rejected the COMMIT, so there the transaction is open. SQLAlchemy would return
    the connection to its pool in this state, without a rollback.
    """
    if not _is_of_sqlalchemy(connection):
        return False
    # Only a session can be in a transaction that is not active.
    return not (connection.in_transaction() and getattr(connection, "is_active", True))


async def discard(connection: Any) -> None:
    """Closes a connection of SQLAlchemy that cannot be rolled back, so that no pool gets it."""
    if not _is_of_sqlalchemy(connection):
        return
    with contextlib.suppress(Exception):
        done = connection.invalidate()
        if inspect.isawaitable(done):
            await done


def _is_of_sqlalchemy(connection: Any) -> bool:
    return (kind_of(connection) or "").startswith("sqlalchemy.")


def _aborted(last_error: str) -> IdemError:
    # libpq keeps the last error, which is the first one unless statements have followed it.
    first = last_error.partition("\n")[0].removeprefix("ERROR:").strip()
    text = "the handler has caught the error of a statement, so its transaction is aborted"
    if first and not first.startswith("current transaction is aborted"):
        text += f": {first}"
    return IdemError(text, _ABORTED, "Raise the error, or execute the statement in a savepoint.")
