"""The ORM session of SQLAlchemy over psycopg: a Session for each transaction."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from drivers.sqlalchemy_core import engines, options, refusal, rows, statement


class OrmSession:
    def __init__(self) -> None:
        self.engine, self.autocommit = engines()
        self.transaction: Session | None = None

    def execute(self, sql: str, arguments: Sequence[Any]) -> list[list[Any]]:
        try:
            return self._execute(sql, arguments)
        except DBAPIError as error:
            raise refusal(error) from error

    def _execute(self, sql: str, arguments: Sequence[Any]) -> list[list[Any]]:
        if sql.startswith("BEGIN"):
            self.transaction = Session(self.engine)
            self.transaction.connection(execution_options=options(sql))
            return []
        if self.transaction is None:
            with Session(self.autocommit) as session:
                return rows(session.execute(*statement(sql, arguments)))
        if sql not in ("COMMIT", "ROLLBACK"):
            return rows(self.transaction.execute(*statement(sql, arguments)))
        with self.transaction as session:
            self.transaction = None
            # Only the context of the transaction rolls back when COMMIT fails.
            with session.get_transaction() as transaction:
                if sql == "ROLLBACK":
                    transaction.rollback()
        return []

    def close(self) -> None:
        if self.transaction is not None:
            self.transaction.close()
        self.engine.dispose()


connect = OrmSession
