"""Leases with renewal in the background, without asyncio."""

from __future__ import annotations

from datetime import timedelta
from types import TracebackType
from typing import Any

from .async_lease import AsyncLease, async_lease
from .blocking import awaitable, blocking, finished
from .effects import Effects
from .ids import MessageId
from .leases import DEFAULT_LEASE, Exhausted, Held
from .once import Call, OnUnknown, Query, awaitable_query
from .outcomes import Dead, Duplicate, InProgress, Settlement
from .transactions import blocking_transactions


def lease(
    source: Any, message_id: MessageId, destination: str, duration: timedelta = DEFAULT_LEASE
) -> Lease | Exhausted | Duplicate | InProgress | Dead:
    """Acquires the lease of a message, in a transaction of its own.

    `source` opens transactions: see `transactions`. A lost connection is retried.
    """
    opened = blocking_transactions(source)
    acquired = finished(async_lease(opened, message_id, destination, duration))
    return Lease(opened, acquired.held) if isinstance(acquired, AsyncLease) else acquired


class Lease:
    """A lease that is renewed in the background while its block runs. See `AsyncLease`."""

    def __init__(self, source: Any, held: Held) -> None:
        self._asynchronous = AsyncLease(blocking_transactions(source), held)
        self.held = held

    def record(self, effects: Effects) -> None:
        """Records effects when the message is completed."""
        self._asynchronous.record(effects)

    def give_back(self) -> None:
        """Releases the message at the end of the block, without counting the attempt."""
        self._asynchronous.give_back()

    complete = blocking(AsyncLease.complete)

    @property
    def settlement(self) -> Settlement:
        """It is "redeliver" until the block has completed the message, then "acknowledge"."""
        return self._asynchronous.settlement

    @property
    def is_lost(self) -> bool:
        """Whether the lease is lost or may be lost. Stop working then."""
        return self._asynchronous.is_lost

    def once(self, step: str, request: Any, call: Call, *, on_unknown: OnUnknown | Query) -> Any:
        """Makes an external call once, and returns its response. See `once` of `AsyncLease`."""
        made = self._asynchronous.once(
            step, request, awaitable(call), on_unknown=awaitable_query(on_unknown)
        )
        return finished(made)

    def __enter__(self) -> Lease:
        finished(self._asynchronous.__aenter__())
        return self

    def __exit__(
        self,
        type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        finished(self._asynchronous.__aexit__(type, error, traceback))
