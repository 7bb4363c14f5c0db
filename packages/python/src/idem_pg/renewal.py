"""The renewal of a lease, by a thread or by a task."""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from .blocking import finished
from .errors import IdemError
from .lease_rules import RENEWAL_THREAD, log_failure
from .leases import Held
from .transactions import AsyncTransactions, in_transaction

T = TypeVar("T")

_STEPS: set[asyncio.Future[Any]] = set()
"""The event loop keeps only weak references to its tasks."""


class Renewal(ABC):
    """Extends a lease when a third of its duration has passed, until it is stopped or lost."""

    def __init__(self, open_transaction: AsyncTransactions, held: Held) -> None:
        self._transactions = open_transaction
        self._held = held
        self._duration = held.duration.total_seconds()
        self._ends_at = held.asked_at + self._duration
        self._is_lost = False

    @property
    def is_lost(self) -> bool:
        """Whether the server has rejected an extension, or the lease has expired."""
        return self._is_lost or time.monotonic() >= self._ends_at

    async def _renewed(self) -> bool:
        """Renews the lease until it is lost. Returns False if the renewal was stopped before."""
        while not await self._stopped_in(self._ends_at - self._duration * 2 / 3 - time.monotonic()):
            asked_at = time.monotonic()
            try:
                await self._in_time(
                    in_transaction(self._transactions, lambda idem: idem.extend(self._held))
                )
                self._ends_at = asked_at + self._duration
                continue
            except Exception as error:
                self._log(error)
                if isinstance(error, IdemError) and error.sqlstate == "55000":
                    self._is_lost = True
                # Every other error is one of the environment, so the extension is tried again.
            if self.is_lost:
                self._is_lost = True
                return True
            if await self._stopped_in(max(self._duration / 20, 0.001)):
                return False
        return False

    def _log(self, error: Exception) -> None:
        log_failure("renew", self._held, error)

    @abstractmethod
    async def _stopped_in(self, seconds: float) -> bool:
        """Waits, and returns whether the renewal was stopped."""

    @abstractmethod
    async def _in_time(self, extended: Coroutine[Any, Any, None]) -> None:
        """Runs an extension. It fails at the end of the lease, if it can be interrupted."""


class ThreadRenewal(Renewal):
    """Renews in a thread, which interrupts nothing."""

    def __init__(self, open_transaction: AsyncTransactions, held: Held) -> None:
        super().__init__(open_transaction, held)
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._renew, name=RENEWAL_THREAD, daemon=True).start()

    def stop(self) -> None:
        """Stops the renewal. An extension that is under way fails if the lease ends before it."""
        self._stopped.set()

    def is_cause_of(self, _error: BaseException | None) -> bool:
        """Returns whether this renewal has interrupted the block."""
        return False

    async def uninterrupted(self, work: Callable[[T], Awaitable[None]], argument: T) -> None:
        """Runs a step of the end of the block."""
        await work(argument)

    def _renew(self) -> None:
        finished(self._renewed())

    def _log(self, error: Exception) -> None:
        if not self._stopped.is_set():
            super()._log(error)

    async def _stopped_in(self, seconds: float) -> bool:
        return self._stopped.wait(max(seconds, 0))

    async def _in_time(self, extended: Coroutine[Any, Any, None]) -> None:
        await extended


class TaskRenewal(Renewal):
    """Renews in a task. When the lease is lost, the task that has started it is cancelled."""

    _has_cancelled = False
    _worker: asyncio.Task[object] | None = None
    _task: asyncio.Task[None] | None = None

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
        if await self._renewed() and self._worker is not None:
            self._has_cancelled = True
            self._worker.cancel()

    async def _stopped_in(self, seconds: float) -> bool:
        # A stop cancels the task.
        await asyncio.sleep(max(seconds, 0))
        return False

    async def _in_time(self, extended: Coroutine[Any, Any, None]) -> None:
        await asyncio.wait_for(extended, self._ends_at - time.monotonic())
