"""What a driver implements."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass
class Json:
    """A value of type json or jsonb: an argument, or a value that the driver has decoded."""

    value: Any


@dataclass
class Refusal(Exception):
    """An error of the server."""

    sqlstate: str | None
    hint: str | None
    message: str


class Session(Protocol):
    """A connection in autocommit mode."""

    def execute(self, sql: str, arguments: Sequence[Any]) -> list[list[Any]]:
        """Executes one statement with the parameters $1, $2… and returns its rows.

        Raises `Refusal` for an error of the server.
        """

    def close(self) -> None: ...
