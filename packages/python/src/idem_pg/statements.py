"""The statements of idem's functions, without a driver.

A statement has the parameters $1, $2… in this order, each with a cast, so that every driver passes
them in the same way. JSON is passed and read as text.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

from .effects import is_bytes, json_text, object_of, with_time_zone
from .errors import IdemError
from .ids import MessageId, id_text
from .leases import Held

T = TypeVar("T")
Rows = Sequence[Sequence[Any]]


@dataclass(slots=True)
class Statement(Generic[T]):
    """A statement that returns rows, its parameters, and how its rows are read."""

    sql: str
    parameters: tuple[Any, ...]
    decode: Callable[[Rows], T]


class Call:
    """The call of a function. An option that is None is left out, so that its default is used."""

    def __init__(self, function: str) -> None:
        self._function = function
        self._types: list[str | tuple[str, str]] = []
        self._parameters: list[Any] = []

    @classmethod
    def of(cls, function: str, message_id: MessageId, destination: str) -> Call:
        """Returns the call of a function whose first arguments are a message and its consumer."""
        return cls(function).id(message_id).text(destination)

    @classmethod
    def of_lease(cls, function: str, held: Held) -> Call:
        return cls.of(function, held.message_id, held.destination).add("bigint", held.token)

    def add(self, sql_type: str, value: Any) -> Call:
        self._types.append(sql_type)
        self._parameters.append(_checked(value))
        return self

    def id(self, message_id: MessageId) -> Call:
        if isinstance(message_id, UUID):
            return self.add("uuid", message_id)
        return self.add("text", id_text(message_id))

    def text(self, value: str) -> Call:
        return self.add("text", value)

    def error(self, value: str) -> Call:
        return self.text(storable(value))

    def payload(self, value: Any) -> Call:
        if is_bytes(value):
            return self.add("bytea", bytes(value))
        return self.add("jsonb", json_text(value))

    def option(self, name: str, sql_type: str, value: Any) -> Call:
        if value is not None:
            self._types.append((name, sql_type))
            self._parameters.append(_checked(value))
        return self

    def time_option(self, name: str, value: datetime | None) -> Call:
        return self.option(name, "timestamptz", value and with_time_zone(name, value))

    def json_option(self, name: str, value: Any) -> Call:
        return self.option(name, "jsonb", None if value is None else json_text(value))

    def response(self, value: Any) -> Call:
        """Adds the response of an external call, which is stored byte for byte."""
        return self.option("response", "json", None if value is None else json_text(value))

    def content(
        self,
        headers: Mapping[str, Any] | None,
        key: str | None,
        type: str | None,
        content_type: str | None,
    ) -> Call:
        """Adds what a message has besides its payload."""
        self.json_option("headers", object_of(headers)).option("key", "text", key)
        return self.option("type", "text", type).option("content_type", "text", content_type)

    def returning(self, columns: str, decode: Callable[[Rows], T]) -> Statement[T]:
        """Returns a statement that reads columns of the function's result."""
        return Statement(f"SELECT {columns} FROM {self._text()}", tuple(self._parameters), decode)

    def scalar(self) -> Statement[T]:
        """Returns a statement that reads the function's only value."""
        return self.scalar_and()

    def scalar_and(self, *others: str) -> Statement[T]:
        """The same, and calls other functions after it."""
        sql = f"SELECT {', '.join([self._text(), *others])}"
        return Statement(sql, tuple(self._parameters), _first)

    def nothing(self) -> Statement[None]:
        """Returns a statement for a function that returns nothing."""
        return Statement(f"SELECT {self._text()}", tuple(self._parameters), _none)

    def after(self, other: Call, columns: str) -> Statement[None]:
        """Returns one statement that calls another function, then this one, and reads columns."""
        own, number = self._text(), len(self._parameters) + 1
        # PostgreSQL computes the columns from left to right, for each row of FROM.
        sql = f"SELECT {own}, {columns} FROM {other._text(number)}"
        return Statement(sql, (*self._parameters, *other._parameters), _none)

    def _text(self, first: int = 1) -> str:
        return _call_text(self._function, tuple(self._types), first)


@functools.lru_cache(maxsize=512)
def _call_text(function: str, types: tuple[str | tuple[str, str], ...], first: int) -> str:
    """Returns the SQL of a call. A type alone is a positional argument."""
    arguments = []
    for number, argument in enumerate(types, first):
        name, sql_type = ("", argument) if isinstance(argument, str) else argument
        # The user can have changed how a driver converts JSON, so JSON is passed as text.
        value = f"CAST(${number} AS text)" if sql_type in ("json", "jsonb") else f"${number}"
        arguments.append(f"{name and f'{name} => '}CAST({value} AS {sql_type})")
    return f"{function}({', '.join(arguments)})"


def storable(text: str) -> str:
    """Returns the text of an error without what PostgreSQL cannot store."""
    return text.replace("\0", "").encode(errors="replace").decode()


def _checked(value: Any) -> Any:
    """Returns a parameter. Raises IdemError for a text that PostgreSQL cannot store."""
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and "\0" in text:
            raise IdemError(
                "a text contains a zero byte, which PostgreSQL cannot store",
                "22021",
                "Remove the zero byte from the text.",
            )
    return value


def _first(rows: Rows) -> Any:
    return rows[0][0]


def _none(_rows: Rows) -> None:
    return None
