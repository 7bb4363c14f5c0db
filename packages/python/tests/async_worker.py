"""The program of worker.py with asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psycopg
import worker
from forks import Say
from worker import STEPS, Run, reach

from idem_pg import AsyncIdem, AsyncLease, Effect, Found, OnUnknown, UnknownCall, async_lease


def is_renewal() -> bool:
    task = asyncio.current_task()
    name = getattr(task.get_coro(), "__qualname__", "") if task is not None else ""
    # Until Python 3.11, `asyncio.wait_for` executes the extension in a task of its own.
    return name in ("TaskRenewal._renew", "in_transaction")


class Source:
    """Opens transactions, and can stop before and after each commit."""

    def __init__(self) -> None:
        self._steps = iter(STEPS)

    @contextlib.asynccontextmanager
    async def __call__(self) -> AsyncIterator[Any]:
        step = "" if is_renewal() else next(self._steps, "")
        async with await psycopg.AsyncConnection.connect() as connection:
            yield connection
            reach(f"before {step}")
        reach(f"after {step}")


async def request(key: str) -> dict[str, str]:
    return worker.request(key)


async def look(call: UnknownCall) -> Found | None:
    return worker.look(call)


async def work(held: AsyncLease) -> None:
    variants: dict[str, Callable[[], Awaitable[Any]]] = {
        "look": lambda: held.once("charge", 1, request, on_unknown=look),
        "repeat": lambda: held.once("charge", 1, request, on_unknown=OnUnknown.REPEAT),
        "careless": lambda: request("no key"),
    }
    held.record(Effect("charged", await variants[Run.variant]()))


async def run() -> None:
    while not await is_done():
        await asyncio.sleep(0.01)


async def is_done() -> bool:
    found = await async_lease(Source(), "m", Run.destination)
    if isinstance(found, AsyncLease):
        async with found:
            await work(found)
        return True
    async with await psycopg.AsyncConnection.connect() as connection:
        return await AsyncIdem(connection).is_claimed("m", Run.destination)


def main(say: Say, destination: str, variant: str, stop: str = "") -> None:
    Run.say, Run.destination, Run.variant, Run.stop = say, destination, variant, stop
    asyncio.run(run())
