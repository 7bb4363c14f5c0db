"""Processes a message in a transaction of its own, without asyncio."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import datetime
from typing import Any

from .async_process import Processed, async_process
from .blocking import awaitable, finished
from .effects import Effects
from .ids import MessageId
from .outcomes import Duplicate, Expired, InProgress, Mismatch
from .transactions import blocking_transactions


def process(
    source: Any,
    message_id: MessageId,
    destination: str,
    handler: Callable[[Any], Effects | None],
    *,
    retries: int = 0,
    wait: bool = True,
    fingerprint: bytes | None = None,
    sent_at: datetime | None = None,
) -> Processed | Duplicate | InProgress | Mismatch | Expired:
    """Claims a message, runs the handler, and records its effects, all in one transaction.

    `source` opens transactions: see `transactions`. All else is as for `async_process`.
    """
    if inspect.iscoroutinefunction(handler):
        raise TypeError("use async_process for a coroutine function")
    return finished(
        async_process(
            blocking_transactions(source),
            message_id,
            destination,
            awaitable(handler),
            retries=retries,
            wait=wait,
            fingerprint=fingerprint,
            sent_at=sent_at,
        )
    )
