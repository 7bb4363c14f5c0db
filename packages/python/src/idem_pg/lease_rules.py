"""Rules of leases and of their renewal."""

from __future__ import annotations

import enum

from .errors import LeaseNotCompletedError
from .leases import Held
from .once import is_final, text_of_error
from .statements import Statement

RENEWAL_THREAD = "idem lease"
"""The name of the threads that renew leases."""

LOST = "the lease is lost, so another process may work on the message"


SHORT_LOCK_TIMEOUT: Statement[None] = Statement(
    "SELECT set_config('lock_timeout', '100ms', true)", (), lambda _: None
)
"""Limits how long the transaction waits for a lock."""


class Completion(enum.Enum):
    """What completes the message."""

    BY_BLOCK = enum.auto()
    """The normal end of the block."""
    BY_USER = enum.auto()
    """The user has called `complete` in a transaction of the user."""
    GIVEN_BACK = enum.auto()
    """The message is not completed, and its attempt does not count."""

    def not_committed(self) -> LeaseNotCompletedError:
        return LeaseNotCompletedError(
            "the transaction of `complete` did not commit before the end of the block"
        )

    def reason(self, error: BaseException | None) -> tuple[str | None, bool]:
        """Returns the error of a release, and whether it is final.

        An exception that ends the program is no failure of the message, so it is not counted.
        """
        if self is Completion.GIVEN_BACK or not isinstance(error, Exception):
            return None, False
        return text_of_error(error), is_final(error)


class Ending(enum.Enum):
    """What the end of the block does."""

    COMPLETE = enum.auto()
    CHECK = enum.auto()
    RELEASE = enum.auto()


def ending_of(error: BaseException | None, completion: Completion) -> Ending:
    """Returns what the end of a block does that ended with this exception."""
    if error is not None or completion is Completion.GIVEN_BACK:
        return Ending.RELEASE
    return Ending.COMPLETE if completion is Completion.BY_BLOCK else Ending.CHECK


def renew_at(held: Held, ends_at: float) -> float:
    """Returns when a lease is renewed: when two thirds of it are left."""
    return ends_at - held.duration.total_seconds() * 2 / 3


def pause_of(held: Held) -> float:
    """Returns the pause after a failed renewal, in seconds."""
    return max(held.duration.total_seconds() / 20, 0.001)
