"""Leases that the server has granted."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from .ids import MessageId
from .outcomes import Dead, Duplicate, InProgress, Settlement

DEFAULT_LEASE = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Held:
    """A lease: the right to work on a message until the lease ends, proved by a token."""

    settlement: ClassVar[Settlement] = "redeliver"
    """Until the message is completed. Acknowledge it after the commit of `complete`."""
    message_id: MessageId
    destination: str
    token: int
    attempt: int
    """The number of this attempt, from 1."""
    last_error: str | None
    """Why the previous attempt failed."""
    duration: timedelta
    asked_at: float
    """A moment of `time.monotonic()` before the lease was asked for."""


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The message is leased, and no attempt is left. Call `bury`, then acknowledge the message."""

    settlement: ClassVar[Settlement] = "reject"
    held: Held


Acquired = Held | Exhausted | Duplicate | InProgress | Dead
