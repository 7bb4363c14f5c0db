"""Retries of steps that are safe to repeat."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..errors import IdemError
from ..transactions import retry_delays
from .problem import database_error, is_unreachable

T = TypeVar("T")

RETRY_FOR_S = 5.0
"""No attempt begins after this time: a pool that has waited for a connection is not asked again."""


def retried(attempt: Callable[[], T]) -> T:
    """Runs `attempt`, and again after a lost connection or a conflict."""
    retries = _Retries()
    while True:
        try:
            return attempt()
        except Exception as error:
            delay = retries.delay_after(error)
            if delay is None:
                raise
        time.sleep(delay)


async def async_retried(attempt: Callable[[], Awaitable[T]]) -> T:
    """Runs `attempt`, and again after a lost connection or a conflict."""
    retries = _Retries()
    while True:
        try:
            return await attempt()
        except Exception as error:
            delay = retries.delay_after(error)
            if delay is None:
                raise
        await asyncio.sleep(delay)


class _Retries:
    """Decides after each attempt whether another one follows."""

    def __init__(self) -> None:
        self._delays = retry_delays()
        self._ends_at = time.monotonic() + RETRY_FOR_S

    def delay_after(self, error: Exception) -> float | None:
        """Returns the delay until the next attempt, or None if there is none."""
        delay = next(self._delays)
        is_next = delay > 0 and time.monotonic() < self._ends_at and _may_retry(error)
        return delay if is_next else None


def _may_retry(error: Exception) -> bool:
    """Returns whether the step can succeed if it is executed again."""
    found = database_error(error)
    return is_unreachable(error) or (isinstance(found, IdemError) and found.retryable)
