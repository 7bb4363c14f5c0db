"""Messages that were received into the database."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

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
