"""psycopg 3 with its default settings, in autocommit mode."""

import json
import re
from collections.abc import Sequence
from typing import Any

import psycopg

from protocol import Json, Refusal

JSON_TYPES = {114, 3802}


class PsycopgSession:
    def __init__(self) -> None:
        self.connection = psycopg.connect(autocommit=True)

    def execute(self, sql: str, arguments: Sequence[Any]) -> list[list[Any]]:
        try:
            if arguments:
                cursor = self.connection.execute(named(sql), parameters(arguments))
            else:
                cursor = self.connection.execute(sql)
        except psycopg.Error as error:
            raise Refusal(error.sqlstate, error.diag.message_hint, str(error)) from error
        if cursor.description is None:
            return []
        types = [column.type_code for column in cursor.description]
        return [[value(*cell) for cell in zip(types, row, strict=True)] for row in cursor]

    def close(self) -> None:
        self.connection.close()


def named(sql: str) -> str:
    """Returns the statement with the placeholders of psycopg: $1 becomes %(p1)s."""
    return re.sub(r"\$(\d+)", r"%(p\1)s", sql.replace("%", "%%"))


def parameters(arguments: Sequence[Any]) -> dict[str, Any]:
    return {f"p{number}": parameter(value) for number, value in enumerate(arguments, 1)}


def parameter(value: Any) -> Any:
    return json.dumps(value.value) if isinstance(value, Json) else value


def value(type_code: int, cell: Any) -> Any:
    return Json(cell) if type_code in JSON_TYPES and cell is not None else cell


connect = PsycopgSession
