"""A statement, and how it is built from the call of a function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from uuid import UUID

from ..effects import json_text
from ..ids import MessageId, id_text

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

    def add(self, sql_type: str, value: Any) -> Call:
        self._types.append(sql_type)
        self._parameters.append(value)
        return self

    def id(self, message_id: MessageId) -> Call:
        if isinstance(message_id, UUID):
            return self.add("uuid", message_id)
        return self.add("text", id_text(message_id))

    def text(self, value: str) -> Call:
        return self.add("text", value)

    def json(self, value: Any) -> Call:
        return self.add("jsonb", json_text(value))

    def option(self, name: str, sql_type: str, value: Any) -> Call:
        if value is not None:
            self._types.append((name, sql_type))
            self._parameters.append(value)
        return self

    def json_option(self, name: str, value: Any) -> Call:
        return self.option(name, "jsonb", None if value is None else json_text(value))

    def returning(self, columns: str, decode: Callable[[Rows], T]) -> Statement[T]:
        """Returns a statement that reads columns of the function's result."""
        return Statement(f"SELECT {columns} FROM {self._text()}", tuple(self._parameters), decode)

    def scalar(self) -> Statement[Any]:
        """Returns a statement that reads the function's only value."""
        return Statement(f"SELECT {self._text()}", tuple(self._parameters), _first)

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
        value = f"CAST(${number} AS text)" if sql_type == "jsonb" else f"${number}"
        arguments.append(f"{name and f'{name} => '}CAST({value} AS {sql_type})")
    return f"{function}({', '.join(arguments)})"


def _first(rows: Rows) -> Any:
    return rows[0][0]


def _none(_rows: Rows) -> None:
    return None
