"""A statement, and how it is built from the call of a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from uuid import UUID

from ..effects import json_text
from ..ids import MessageId, id_text

T = TypeVar("T")
Rows = Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Statement(Generic[T]):
    """A statement, its parameters, and how its rows are read."""

    sql: str
    parameters: tuple[Any, ...]
    decode: Callable[[Rows], T]


class Call:
    """The call of a function. An option that is None is left out, so that its default is used."""

    def __init__(self, function: str) -> None:
        self._function = function
        self._arguments: list[str] = []
        self._parameters: list[Any] = []

    def add(self, sql_type: str, value: Any) -> Call:
        self._parameters.append(value)
        self._arguments.append(f"CAST(${len(self._parameters)} AS {sql_type})")
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
            self.add(sql_type, value)
            self._arguments[-1] = f"{name} => {self._arguments[-1]}"
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

    def _text(self) -> str:
        return f"{self._function}({', '.join(self._arguments)})"


def _first(rows: Rows) -> Any:
    return rows[0][0]


def _none(_rows: Rows) -> None:
    return None
