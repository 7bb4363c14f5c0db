"""Which steps of a request are repeated."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..transactions import is_retryable
from .problem import is_unreachable

RETRY_FOR_S = 5.0
"""No attempt begins after this time: a pool that has waited for a connection is not asked again."""


def soon() -> Callable[[Exception], bool]:
    """Accepts lost connections and conflicts for a short time, which begins now."""
    ends_at = time.monotonic() + RETRY_FOR_S

    def may_retry(error: Exception) -> bool:
        is_transient = is_unreachable(error) or is_retryable(error)
        return is_transient and time.monotonic() < ends_at

    return may_retry
