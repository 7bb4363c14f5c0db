"""Messages that were received into the database, and those that a relay publishes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from .leases import Held


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message of the durable inbox, under a lease. A JSON payload is its UTF-8 text."""

    held: Held
    seq: int
    key: str | None
    type: str | None
    payload: bytes = field(repr=False)
    content_type: str
    headers: dict[str, Any] | None
    traceparent: str | None
    received_at: datetime
    lease_expired: bool
    """Whether an earlier attempt ended because its lease expired."""

    def json(self) -> Any:
        """Returns the payload as JSON."""
        return json.loads(self.payload)


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """An effect in a batch of a relay. A JSON payload is its UTF-8 text."""

    token: int
    """The token of the batch, the same for all of its effects."""
    seq: int
    message_id: UUID
    topic: str
    key: str | None
    type: str | None
    payload: bytes = field(repr=False)
    content_type: str
    headers: dict[str, Any] | None
    traceparent: str | None
    recorded_at: datetime
    source_destination: str | None

    def json(self) -> Any:
        """Returns the payload as JSON."""
        return json.loads(self.payload)
