"""Entries of the journal of external calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

CallState = Literal["new", "unknown", "done", "failed"]


@dataclass(frozen=True, slots=True)
class Begun:
    """What the journal knows about a step when an attempt begins."""

    state: CallState
    idempotency_key: str
    """The same for every attempt."""
    response: Any = field(repr=False)
    attempt: int
    begun_at: datetime | None
    """The start of the first attempt that may have had its effect."""
    error: str | None


@dataclass(frozen=True, slots=True)
class ExternalCall:
    """An entry of the journal."""

    step: str
    state: CallState
    attempt: int
    begun_at: datetime
    ended_at: datetime | None
    response: Any = field(repr=False)
    error: str | None
