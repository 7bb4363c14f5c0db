"""The results of claims and of attempts to acquire a lease, for `match`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar, Literal

Settlement = Literal["acknowledge", "redeliver", "reject"]
"""What to tell the broker about a message, after the commit.

- "acknowledge".
- "redeliver": let the broker deliver the message again, after `retry_after` if it is known.
- "reject": store the message as a dead letter with `idem.reject(None, …)`, or with `bury` under a
  held lease, and then acknowledge it. A broker without a target for dead letters would drop it.
  `reject` with the id of the message stores nothing if the id was processed.
"""


@dataclass(frozen=True, slots=True)
class Claimed:
    """This transaction has claimed the message. Do the work, and commit."""

    settlement: ClassVar[Settlement] = "acknowledge"


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The message was processed already. There is nothing to do."""

    settlement: ClassVar[Settlement] = "acknowledge"
    handled_at: datetime | None = None
    """The time of the claim, if it is known."""


@dataclass(frozen=True, slots=True)
class InProgress:
    """Another process holds the message, or the message waits for a retry. Try again later."""

    settlement: ClassVar[Settlement] = "redeliver"
    retry_after: timedelta | None = None
    """The time until another attempt is possible, if it is known."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The message was processed at `handled_at` with another fingerprint."""

    settlement: ClassVar[Settlement] = "reject"
    handled_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Expired:
    """The message is too old to be distinguished from a duplicate."""

    settlement: ClassVar[Settlement] = "reject"


@dataclass(frozen=True, slots=True)
class Dead:
    """The message is a dead letter. Acknowledge it."""

    settlement: ClassVar[Settlement] = "acknowledge"


Outcome = Claimed | Duplicate | InProgress | Mismatch | Expired


def outcome_of(name: str, handled_at: datetime | None) -> Outcome:
    """Returns the outcome of a claim. Raises ValueError for one that this package does not know."""
    match name:
        case "claimed":
            return Claimed()
        case "duplicate":
            return Duplicate(handled_at)
        case "in_progress":
            return InProgress()
        case "mismatch":
            return Mismatch(handled_at)
        case "expired":
            return Expired()
    raise ValueError(f"the extension is newer than this package: outcome {name}")
