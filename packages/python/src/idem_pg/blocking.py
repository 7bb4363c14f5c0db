"""Runs coroutines without an event loop.

Each rule is written once, as a coroutine. Over a synchronous driver the coroutine blocks where it
would wait, so it ends with its first step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Stopped(Exception):  # noqa: N818
    """Carries a StopIteration through a coroutine, which cannot raise it."""

    def __init__(self, stop: StopIteration) -> None:
        super().__init__(str(stop))
        self.stop = stop


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that blocks, and returns its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    except Stopped as stopped:
        raise stopped.stop from None
    coroutine.close()
    raise RuntimeError("a synchronous function has waited for an event loop")


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Returns the synchronous form of a method, for a class with the object as `_asynchronous`."""

    @functools.wraps(method)
    def called(self: Any, /, *args: P.args, **options: P.kwargs) -> T:
        return finished(method(self._asynchronous, *args, **options))

    return called


def awaitable(function: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Returns a coroutine function that calls this function, and blocks."""

    @functools.wraps(function)
    async def called(*args: P.args, **options: P.kwargs) -> T:
        try:
            return function(*args, **options)
        except StopIteration as stop:
            raise Stopped(stop) from stop

    return called
