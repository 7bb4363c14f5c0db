"""The results of claims and of attempts to acquire a lease. Use `match`:

match idem.claim(message_id, "billing.charge"):
    case Claimed():
        charge(payment)
    case Duplicate():
        pass
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Claimed:
    """This transaction has claimed the message. Do the work, and commit."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The message was processed already. There is nothing to do."""

    handled_at: datetime | None = None
    """The time of the claim, if it is known."""


@dataclass(frozen=True, slots=True)
class InProgress:
    """Another process holds the message, or the message waits for a retry. Try again later."""

    retry_after: timedelta | None = None
    """The time until another attempt is possible, if it is known."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The message was processed at `handled_at` with another fingerprint."""

    handled_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Expired:
    """The message is too old to be distinguished from a duplicate."""


@dataclass(frozen=True, slots=True)
class Dead:
    """The message is a dead letter. Acknowledge it."""


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
