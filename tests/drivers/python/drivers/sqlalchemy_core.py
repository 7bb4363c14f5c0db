"""SQLAlchemy Core over psycopg: a Connection for each transaction."""

import re
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, CursorResult, Engine, TextClause, create_engine, text
from sqlalchemy.exc import DBAPIError

from drivers.psycopg import parameters, value
from protocol import Refusal


class CoreSession:
    def __init__(self) -> None:
        self.engine, self.autocommit = engines()
        self.transaction: Connection | None = None

    def execute(self, sql: str, arguments: Sequence[Any]) -> list[list[Any]]:
        try:
            return self._execute(sql, arguments)
        except DBAPIError as error:
            raise refusal(error) from error

    def _execute(self, sql: str, arguments: Sequence[Any]) -> list[list[Any]]:
        if sql.startswith("BEGIN"):
            self.transaction = self.engine.connect().execution_options(**options(sql))
            self.transaction.begin()
            return []
        if self.transaction is None:
            with self.autocommit.connect() as connection:
                return rows(connection.execute(*statement(sql, arguments)))
        if sql not in ("COMMIT", "ROLLBACK"):
            return rows(self.transaction.execute(*statement(sql, arguments)))
        with self.transaction as connection:
            self.transaction = None
            # Only the context of the transaction rolls back when COMMIT fails.
            with connection.get_transaction() as transaction:
                if sql == "ROLLBACK":
                    transaction.rollback()
        return []

    def close(self) -> None:
        if self.transaction is not None:
            self.transaction.close()
        self.engine.dispose()


def engines() -> tuple[Engine, Engine]:
    """Returns an engine for transactions and one in autocommit mode, on the same connection."""
    engine = create_engine("postgresql+psycopg://", pool_size=1, max_overflow=0)
    return engine, engine.execution_options(isolation_level="AUTOCOMMIT")


def options(begin: str) -> dict[str, Any]:
    """Returns the options of SQLAlchemy for a BEGIN with or without options."""
    if begin == "BEGIN READ ONLY":
        return {"postgresql_readonly": True}
    if begin.startswith("BEGIN ISOLATION LEVEL "):
        return {"isolation_level": begin.removeprefix("BEGIN ISOLATION LEVEL ")}
    return {}


def statement(sql: str, arguments: Sequence[Any]) -> tuple[TextClause, dict[str, Any]]:
    """Returns the statement and its values."""
    return text(named(sql)), parameters(arguments)


def named(sql: str) -> str:
    """Returns the statement with :p1 for $1. Other colons are escaped, also those of ::uuid."""
    return re.sub(r"\$(\d+)", r":p\1", sql.replace(":", r"\:"))


def rows(result: CursorResult[Any]) -> list[list[Any]]:
    if not result.returns_rows:
        return []
    types = [column[1] for column in result.cursor.description]
    return [[value(*cell) for cell in zip(types, row, strict=True)] for row in result]


def refusal(error: DBAPIError) -> Refusal:
    cause = error.driver_exception
    return Refusal(cause.sqlstate, cause.diag.message_hint, str(cause))


connect = CoreSession
