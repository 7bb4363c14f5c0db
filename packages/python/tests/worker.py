"""A program that works on one message under a lease. The tests kill it at any step.

It says "stopped" and stops when it reaches a step. Without a step it runs to its end. The external
system is the table `request`: one row for each request, in a transaction of its own.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
from forks import Say

from idem_pg import Effect, Found, Idem, Lease, OnUnknown, UnknownCall, lease
from idem_pg.lease_rules import RENEWAL_THREAD

STEPS = ["acquire", "begin", "finish", "complete"]
"""The transactions of an attempt, in their order."""


class Run:
    """What this process does."""

    destination: str
    variant: str
    stop: str
    say: Say


def reach(step: str) -> None:
    """Waits until this process is killed, if it stops at this step."""
    if step == Run.stop:
        Run.say("stopped")
        threading.Event().wait()


class Source:
    """Opens transactions, and can stop before and after each commit."""

    def __init__(self) -> None:
        self._steps = iter(STEPS)

    @contextlib.contextmanager
    def __call__(self) -> Iterator[Any]:
        # The renewal opens transactions too.
        is_renewal = threading.current_thread().name == RENEWAL_THREAD
        step = "" if is_renewal else next(self._steps, "")
        with psycopg.connect() as connection:
            yield connection
            reach(f"before {step}")
        reach(f"after {step}")


def request(key: str) -> dict[str, str]:
    reach("before request")
    with psycopg.connect() as connection:
        connection.execute("INSERT INTO request VALUES (%s, %s)", [Run.destination, key])
    reach("after request")
    return {"key": key}


def look(call: UnknownCall) -> Found | None:
    with psycopg.connect() as connection:
        row = connection.execute(
            "SELECT key FROM request WHERE destination = %s", [Run.destination]
        ).fetchone()
    return None if row is None else Found({"key": row[0]})


def work(held: Lease) -> None:
    variants: dict[str, Callable[[], Any]] = {
        "look": lambda: held.once("charge", 1, request, on_unknown=look),
        "repeat": lambda: held.once("charge", 1, request, on_unknown=OnUnknown.REPEAT),
        "careless": lambda: request("no key"),
    }
    held.record(Effect("charged", variants[Run.variant]()))


def main(say: Say, destination: str, variant: str, stop: str = "") -> None:
    Run.say, Run.destination, Run.variant, Run.stop = say, destination, variant, stop
    # The server may still be rolling back what the killed process has begun.
    while not is_done():
        time.sleep(0.01)


def is_done() -> bool:
    found = lease(Source(), "m", Run.destination)
    if isinstance(found, Lease):
        with found:
            work(found)
        return True
    with psycopg.connect() as connection:
        return Idem(connection).is_claimed("m", Run.destination)
