"""The renewal of a lease by a task."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from .errors import IdemError
from .lease_rules import RENEWAL_THREAD, log_failure, pause_of, renew_at
from .leases import Held
from .transactions import AsyncTransactions, in_transaction

T = TypeVar("T")

_STEPS: set[asyncio.Future[Any]] = set()
"""The event loop keeps only weak references to its tasks."""


class AsyncRenewal:
    """Extends a lease when a third of its duration has passed, until it is stopped or lost.

    When the lease is lost, the task that has started the renewal is cancelled.
    """

    def __init__(self, open_transaction: AsyncTransactions, held: Held) -> None:
        self._transactions = open_transaction
        self._held = held
        self._is_lost = False
        self._ends_at = held.asked_at + held.duration.total_seconds()
        self._has_cancelled = False
        self._worker: asyncio.Task[object] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_lost(self) -> bool:
        """Whether the server has rejected an extension, or the lease has expired."""
        return self._is_lost or time.monotonic() >= self._ends_at

    def start(self) -> None:
        self._worker = asyncio.current_task()
        self._task = asyncio.create_task(self._renew(), name=RENEWAL_THREAD)

    def stop(self) -> None:
        """Stops the renewal. An extension that is under way is interrupted."""
        self._worker = None
        if self._task is not None:
            self._task.cancel()

    def is_cause_of(self, error: BaseException | None) -> bool:
        """Returns whether this renewal has ended the block with this error."""
        if not self._has_cancelled:
            return False
        self._has_cancelled = False
        task = asyncio.current_task()
        # Python 3.10 does not count the cancellations of a task.
        others = task.uncancel() if task is not None and hasattr(task, "uncancel") else 0
        return error is not None and others == 0

    async def uninterrupted(self, work: Callable[[T], Awaitable[None]], argument: T) -> None:
        """Runs a step of the end of the block in a task of its own.

        The step continues if this task is cancelled, also again and again as anyio does.
        """
        step = asyncio.ensure_future(work(argument))
        _STEPS.add(step)
        step.add_done_callback(_STEPS.discard)
        await asyncio.shield(step)

    async def _renew(self) -> None:
        duration = self._held.duration.total_seconds()
        while True:
            await asyncio.sleep(max(renew_at(self._held, self._ends_at) - time.monotonic(), 0))
            asked_at = time.monotonic()
            extended = in_transaction(self._transactions, lambda idem: idem.extend(self._held))
            try:
                await asyncio.wait_for(extended, self._ends_at - asked_at)
                self._ends_at = asked_at + duration
                continue
            except Exception as error:
                log_failure("renew", self._held, error)
                if isinstance(error, IdemError) and error.sqlstate == "55000":
                    break
                # Every other error is one of the environment, so the extension is tried again.
            if self.is_lost:
                break
            await asyncio.sleep(pause_of(self._held))
        self._is_lost = True
        if self._worker is not None:
            self._has_cancelled = True
            self._worker.cancel()
