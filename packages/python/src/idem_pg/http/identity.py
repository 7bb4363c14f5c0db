"""The identity of a request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """Which request it is: the message id, and the fingerprint of its content."""

    message_id: str
    destination: str
    fingerprint: bytes
