"""The renewal of a lease by a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from .blocking import finished
from .errors import IdemError
from .lease_rules import RENEWAL_THREAD, log_failure, pause_of, renew_at
from .leases import Held
from .transactions import AsyncTransactions, in_transaction

T = TypeVar("T")


class Renewal:
    """Extends a lease when a third of its duration has passed, until it is stopped or lost."""

    def __init__(self, open_transaction: AsyncTransactions, held: Held) -> None:
        self._transactions = open_transaction
        self._held = held
        self._lost = threading.Event()
        self._ends_at = held.asked_at + held.duration.total_seconds()
        self._stopped = threading.Event()

    @property
    def is_lost(self) -> bool:
        """Whether the server has rejected an extension, or the lease has expired."""
        return self._lost.is_set() or time.monotonic() >= self._ends_at

    def start(self) -> None:
        threading.Thread(target=self._renew, name=RENEWAL_THREAD, daemon=True).start()

    def stop(self) -> None:
        """Stops the renewal. An extension that is under way fails if the lease ends before it."""
        self._stopped.set()

    def is_cause_of(self, _error: BaseException | None) -> bool:
        """Returns whether this renewal has interrupted the block. A thread interrupts nothing."""
        return False

    async def uninterrupted(self, work: Callable[[T], Awaitable[None]], argument: T) -> None:
        """Runs a step of the end of the block."""
        await work(argument)

    def _renew(self) -> None:
        duration = self._held.duration.total_seconds()
        while not self._stopped.wait(
            max(renew_at(self._held, self._ends_at) - time.monotonic(), 0)
        ):
            asked_at = time.monotonic()
            if self._extended():
                self._ends_at = asked_at + duration
            elif self.is_lost:
                self._lost.set()
                return
            elif self._stopped.wait(pause_of(self._held)):
                return

    def _extended(self) -> bool:
        try:
            finished(in_transaction(self._transactions, lambda idem: idem.extend(self._held)))
        except Exception as error:
            if not self._stopped.is_set():
                log_failure("renew", self._held, error)
            if isinstance(error, IdemError) and error.sqlstate == "55000":
                self._lost.set()
            # Every other error is one of the environment, so the extension is tried again.
            return False
        return True
