"""Rules of leases and of their renewal."""

from __future__ import annotations

import logging

from .leases import Held
from .statements import Statement

RENEWAL_THREAD = "idem lease"
"""The name of the threads that renew leases."""

LOST = "the lease is lost, so another process may work on the message"


log = logging.getLogger("idem_pg")


def log_failure(action: str, held: Held, error: Exception) -> None:
    """Logs that a step of a lease in the background has failed, with its cause."""
    log.warning(
        "cannot %s the lease of message %r of destination %r: %s: %s",
        action,
        str(held.message_id),
        held.destination,
        type(error).__name__,
        error,
    )


SHORT_LOCK_TIMEOUT: Statement[None] = Statement(
    "SELECT set_config('lock_timeout', '100ms', true)", (), lambda _: None
)
"""Limits how long the transaction waits for a lock."""
