"""External calls: a request to something outside of the database, made once.

The journal records a call before it is made, and its result after it. A recorded result is returned
without a call. Each attempt passes the same idempotency key.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from .blocking import awaitable
from .errors import IdemError
from .external_calls import Begun
from .outcomes import Settlement


class OnUnknown(enum.Enum):
    """What happens if an earlier attempt began the call and its result is not known."""

    REPEAT = "repeat"
    """The call is made again with the same key. For a system that honours idempotency keys."""
    FAIL = "fail"
    """No call is made. `once` raises UnknownResultError, so that a person checks the result."""


@dataclass(frozen=True, slots=True)
class UnknownCall:
    """A call that an earlier attempt began, and whose result is not known."""

    idempotency_key: str
    attempt: int
    begun_at: datetime | None


@dataclass(frozen=True, slots=True)
class Found:
    """The result of an earlier call, which the external system still has."""

    response: Any


Call = Callable[[str], Any]
AsyncCall = Callable[[str], Awaitable[Any]]
Query = Callable[[UnknownCall], Found | None]
AsyncQuery = Callable[[UnknownCall], Awaitable[Found | None]]


def awaitable_query(on_unknown: OnUnknown | Query) -> OnUnknown | AsyncQuery:
    """Returns `on_unknown` for coroutines that block."""
    return on_unknown if isinstance(on_unknown, OnUnknown) else awaitable(on_unknown)


class CallRefusedError(Exception):
    """The call is never made again.

    The external system rejected it, or its result cannot be stored. Raise it in the call if the
    system rejects it permanently. `once` raises it at every later attempt, with the recorded text.
    """

    settlement: ClassVar[Settlement] = "reject"


class CallNotDoneError(Exception):
    """The call certainly had no effect. The next attempt makes the call as if for the first time.

    Raise it in the call, for example because nothing was sent.
    """


class UnknownResultError(Exception):
    """The result of an earlier attempt is not known, and `OnUnknown.FAIL` forbids to repeat it."""

    settlement: ClassVar[Settlement] = "reject"

    def __init__(self, step: str, call: UnknownCall) -> None:
        super().__init__(
            f"the result of step {step!r} of an earlier attempt is not known "
            "(check whether it had an effect)"
        )
        self.step = step
        self.call = call

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.step, self.call)


NOT_STORED = "the call was made, and its result cannot be stored"


_ENVIRONMENT = ("25006", "53", "57", "58")
"""A server that is read-only, is short of resources, cancels statements, or fails."""


def is_not_storable(error: Exception) -> bool:
    """Returns whether the result of a call cannot be recorded, now and later."""
    if isinstance(error, IdemError):
        # 55000: the call has ended already.
        return not error.retryable and not str(error.sqlstate).startswith(("55000", *_ENVIRONMENT))
    # It is not JSON, or is nested too deeply.
    return isinstance(error, (TypeError, ValueError, RecursionError))


def is_final(error: BaseException) -> bool:
    """Returns whether every later attempt would fail with the same error."""
    return isinstance(error, (CallRefusedError, UnknownResultError))


def unknown_of(begun: Begun) -> UnknownCall:
    return UnknownCall(begun.idempotency_key, begun.attempt, begun.begun_at)


def text_of_error(error: BaseException) -> str:
    """Returns the error with its type, as idem's functions store it."""
    return f"{type(error).__name__}: {error}"
