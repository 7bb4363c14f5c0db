"""Errors of idem's functions."""

from __future__ import annotations

from typing import Any

_CONFLICTS = frozenset({"40001", "40P01", "55P03"})
_CONNECTION_LOST = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "53300"})


class IdemError(Exception):
    """An error of the server, or a lost connection.

    The error of the driver is `__cause__`.
    """

    def __init__(self, message: str, sqlstate: str | None, hint: str | None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        """Five characters, or None if the connection was lost."""
        self.hint = hint
        """What to do, as a sentence."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.sqlstate, self.hint)

    @property
    def is_connection_lost(self) -> bool:
        """Whether the connection was lost or could not be opened."""
        state = self.sqlstate
        return state is None or state.startswith("08") or state in _CONNECTION_LOST

    @property
    def retryable(self) -> bool:
        """Whether the whole transaction can succeed if it is executed again."""
        return self.is_connection_lost or self.sqlstate in _CONFLICTS


class LeaseLostError(Exception):
    """The lease is no longer valid, so another process may work on the message.

    Nothing of the failed transaction is written. Do not acknowledge the message.
    """


class LeaseNotCompletedError(Exception):
    """`complete` was called, but the message is not completed: its transaction did not commit.

    The lease expires, and the message is processed again. Do not acknowledge the message.
    """
