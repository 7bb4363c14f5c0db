"""The connections of Django over psycopg, which is in autocommit mode outside of atomic()."""

import json
import os
from collections.abc import Sequence
from itertools import count
from typing import Any

import django
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, Error, connections, transaction

from drivers.psycopg import JSON_TYPES, named, parameters
from protocol import Json, Refusal

ENGINE = "django.db.backends.postgresql"
DATABASE = {"ENGINE": ENGINE, "NAME": os.environ["PGDATABASE"]}
settings.configure(DATABASES={DEFAULT_DB_ALIAS: DATABASE})
django.setup()
ALIASES = (f"session-{number}" for number in count(1))


class DjangoSession:
    def __init__(self) -> None:
        self.alias = next(ALIASES)
        self.connection = connections.create_connection(DEFAULT_DB_ALIAS)
        connections[self.alias] = self.connection
        self.atomic: transaction.Atomic | None = None

    def execute(self, sql: str, arguments: Sequence[Any]) -> list[list[Any]]:
        try:
            return self._execute(sql, arguments)
        except Error as error:
            cause = error.__cause__
            raise Refusal(cause.sqlstate, cause.diag.message_hint, str(cause)) from error

    def _execute(self, sql: str, arguments: Sequence[Any]) -> list[list[Any]]:
        if sql.startswith("BEGIN"):
            self.atomic = transaction.atomic(using=self.alias)
            self.atomic.__enter__()
            options = sql.removeprefix("BEGIN")
            return self._query(f"SET TRANSACTION{options}", []) if options else []
        if self.atomic is None or sql not in ("COMMIT", "ROLLBACK"):
            return self._query(sql, arguments)
        atomic, self.atomic = self.atomic, None
        transaction.set_rollback(sql == "ROLLBACK", using=self.alias)
        atomic.__exit__(None, None, None)
        return []

    def _query(self, sql: str, arguments: Sequence[Any]) -> list[list[Any]]:
        with self.connection.cursor() as cursor:
            if arguments:
                cursor.execute(named(sql), parameters(arguments))
            else:
                cursor.execute(sql)
            if cursor.description is None:
                return []
            types = [column.type_code for column in cursor.description]
            return [[value(*cell) for cell in zip(types, row, strict=True)] for row in cursor]

    def close(self) -> None:
        self.connection.close()
        del connections[self.alias]


def value(type_code: int, cell: Any) -> Any:
    """Django returns jsonb as text."""
    if type_code not in JSON_TYPES or cell is None:
        return cell
    return Json(json.loads(cell) if isinstance(cell, str) else cell)


connect = DjangoSession
