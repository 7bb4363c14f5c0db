"""A decorator for tools of AI agents and for other functions with an effect outside."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

from .async_tools import async_once
from .blocking import awaitable, finished
from .leases import DEFAULT_LEASE
from .once import OnUnknown, Query, awaitable_query
from .transactions import blocking_transactions

P = ParamSpec("P")
T = TypeVar("T")


def once(
    source: Any,
    destination: str,
    *,
    scope: str | None,
    id: str,
    on_unknown: OnUnknown | Query,
    key: str | None = None,
    ignore: Collection[str] = (),
    lease_for: timedelta = DEFAULT_LEASE,
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Makes each call of a function once. See `async_once`."""
    asynchronous = async_once(
        blocking_transactions(source),
        destination,
        scope=scope,
        id=id,
        on_unknown=awaitable_query(on_unknown),
        key=key,
        ignore=ignore,
        lease_for=lease_for,
    )

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        if inspect.iscoroutinefunction(function):
            raise TypeError(f"{function.__qualname__}: use async_once for coroutine functions only")
        tool = asynchronous(awaitable(function))

        @functools.wraps(tool)
        def called(*args: P.args, **options: P.kwargs) -> T:
            return finished(tool(*args, **options))

        # Not `tool.__wrapped__`, which is a coroutine function.
        vars(called)["__wrapped__"] = function
        return called

    return decorate
