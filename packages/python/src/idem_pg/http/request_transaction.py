"""The transaction of a protected request, as its handler sees it."""

from __future__ import annotations

from typing import Any, TypeVar

from .. import executors
from ..executors import kind_of
from . import statements

S = TypeVar("S")


class RequestTransaction:
    """The transaction that claims the request and records its response."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._has_ended = False
        self.keeps_writes = False

    @property
    def connection(self) -> Any:
        """The connection or session of the transaction.

        With ASGI, raises RuntimeError after the response: the transaction has ended, and another
        request may use the connection.
        """
        if self._has_ended:
            raise RuntimeError("the transaction of this request has ended")
        return self._connection

    def keep_writes(self) -> None:
        """Commits the writes of the handler also with a status of 4xx."""
        self.keeps_writes = True

    def end(self) -> None:
        self._has_ended = True


def request_transaction(request: Any) -> RequestTransaction:
    """Returns the transaction of a protected request.

    `request` is a request of Starlette, FastAPI or Django, or an ASGI scope. Raises LookupError if
    the request is not protected.
    """
    return shared_with(request, RequestTransaction, "transaction")


def keep_writes(request: Any) -> None:
    """Commits the writes of the handler also with a status of 4xx."""
    request_transaction(request).keep_writes()


def shared_with(request: Any, kind: type[S], name: str) -> S:
    """Returns what the middleware shares with the handler of a request."""
    # The middleware of Django sets an attribute of the request.
    found = getattr(request, "idem", None)
    if not isinstance(found, kind):
        scope = request if isinstance(request, dict) else getattr(request, "scope", {})
        found = scope.get("idem")
    if isinstance(found, kind):
        return found
    raise LookupError(
        f"the request has no {name} of an IdempotencyMiddleware; look at its applies_to and methods"
    )


class Savepoint:
    """The savepoint after the claim and before the handler."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._session = connection if kind_of(connection) == "sqlalchemy.AsyncSession" else None
        self._nested: Any = None

    async def begin(self) -> None:
        # A session must know the savepoint: it then flushes before the release, forgets unwritten
        # objects at the rollback, and survives a failed flush.
        if self._session is not None:
            self._nested = await self._session.begin_nested()
        else:
            await _execute(self._connection, statements.SET_SAVEPOINT)

    async def keep(self) -> None:
        if self._nested is not None:
            await self._nested.commit()

    async def undo(self) -> None:
        if self._nested is not None:
            await self._nested.rollback()
        else:
            await _execute(self._connection, statements.UNDO_WRITES)


async def _execute(connection: Any, sql: str) -> None:
    """Executes a statement that returns no rows."""
    if kind_of(connection) == "sqlalchemy.AsyncConnection":
        from sqlalchemy import text

        await connection.execute(text(sql))
    else:
        await connection.execute(sql)


def is_closed(connection: Any) -> bool:
    """Returns whether a connection of asyncpg is lost. Its errors do not always tell."""
    return kind_of(connection) == "asyncpg.Connection" and executors.is_closed(connection)


async def base_of(connection: Any) -> Any:
    """Returns the connection of SQLAlchemy under a connection or session, or None.

    Its pool then drops connections that come back in a transaction.
    """
    match kind_of(connection):
        case "sqlalchemy.AsyncConnection":
            base = connection
        case "sqlalchemy.AsyncSession":
            base = await connection.connection()
        case _:
            return None
    from sqlalchemy import event

    pool = base.engine.pool
    if not event.contains(pool, "checkin", _drop_if_in_transaction):
        event.listen(pool, "checkin", _drop_if_in_transaction)
    return base


def is_invalidated(base: Any) -> bool:
    """Returns whether a connection of SQLAlchemy is lost. Later errors do not tell."""
    return base is not None and bool(base.invalidated)


def _drop_if_in_transaction(dbapi_connection: Any, record: Any) -> None:
    """Closes a connection that comes back to its pool in a transaction.

    After a COMMIT that the server has rejected, SQLAlchemy takes the transaction for ended, and
    does not roll it back.
    """
    driver: Any = getattr(dbapi_connection, "driver_connection", None)
    if hasattr(driver, "is_in_transaction"):
        # A closed connection of asyncpg is in no transaction.
        is_in_transaction = driver.is_in_transaction()
    else:
        status = getattr(getattr(driver, "info", None), "transaction_status", None)
        is_in_transaction = getattr(status, "name", None) in ("INTRANS", "INERROR")
    if is_in_transaction:
        record.invalidate()
