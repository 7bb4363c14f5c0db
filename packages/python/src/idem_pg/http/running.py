"""Waits for leased requests at a shutdown."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from .problem import log


class RunningRequests:
    """The leased requests of a middleware that are being processed."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def add(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def count(self) -> int:
        return len(self._tasks)

    async def ended(self, grace: timedelta) -> int:
        """Waits until all requests have ended and are recorded, at most for `grace`.

        Returns the number of requests that have not ended. Call it when the server accepts no more
        requests, in the event loop of the server.
        """
        if self._tasks:
            await asyncio.wait(self._tasks.copy(), timeout=grace.total_seconds())
        if self._tasks:
            log.warning("%d leased requests have not ended within %s", self.count, grace)
        return self.count
