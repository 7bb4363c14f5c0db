"""asyncpg, which asks the server for the type of each parameter and accepts only that type."""

import asyncio
import datetime
import json
from collections.abc import Sequence
from typing import Any

import asyncpg

from protocol import Json, Refusal

LOOP = asyncio.new_event_loop()
UNITS = {
    "millisecond": {"milliseconds": 1},
    "second": {"seconds": 1},
    "minute": {"minutes": 1},
    "hour": {"hours": 1},
    "day": {"days": 1},
    "year": {"days": 365},
}


class AsyncpgSession:
    def __init__(self) -> None:
        self.connection = LOOP.run_until_complete(asyncpg.connect())

    def execute(self, sql: str, arguments: Sequence[Any]) -> list[list[Any]]:
        return LOOP.run_until_complete(self._execute(sql, arguments))

    async def _execute(self, sql: str, arguments: Sequence[Any]) -> list[list[Any]]:
        try:
            statement = await self.connection.prepare(sql, name="")
            types = [parameter.name for parameter in statement.get_parameters()]
            values = [parameter(*pair) for pair in zip(arguments, types, strict=True)]
            rows = await statement.fetch(*values)
        except asyncpg.PostgresError as error:
            raise Refusal(error.sqlstate, error.hint, str(error)) from error
        columns = [column.type.name for column in statement.get_attributes()]
        return [[value(*cell) for cell in zip(columns, row.values(), strict=True)] for row in rows]

    def close(self) -> None:
        LOOP.run_until_complete(self.connection.close())


def parameter(value: Any, of_type: str) -> Any:
    """Returns an argument as the type that asyncpg accepts for the parameter."""
    match of_type, value:
        case _, Json(document):
            return json.dumps(document)
        case "interval", str():
            return interval(value)
        case "timestamptz", str():
            return datetime.datetime.fromisoformat(value)
        case "float8", str():
            return float(value)
        case "text", int():
            return str(value)
        case _:
            return value


def interval(text: str) -> datetime.timedelta:
    if text == "0":
        return datetime.timedelta()
    number, unit = text.split()
    return datetime.timedelta(**UNITS[unit.removesuffix("s")]) * int(number)


def value(of_type: str, cell: Any) -> Any:
    """asyncpg returns jsonb as text."""
    return Json(json.loads(cell)) if of_type in ("json", "jsonb") and cell is not None else cell


connect = AsyncpgSession
