"""Transactions that a failed statement has aborted, although the handler has caught the error.

PostgreSQL answers their COMMIT with a ROLLBACK and no error, and so do the drivers.
"""

from __future__ import annotations

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


def _aborted(last_error: str) -> IdemError:
    # libpq keeps the last error, which is the first one unless statements have followed it.
    first = last_error.partition("\n")[0].removeprefix("ERROR:").strip()
    text = "the handler has caught the error of a statement, so its transaction is aborted"
    if first and not first.startswith("current transaction is aborted"):
        text += f": {first}"
    return IdemError(text, _ABORTED, "Raise the error, or execute the statement in a savepoint.")
