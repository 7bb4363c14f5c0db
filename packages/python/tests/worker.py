"""A program that works on one message under a lease. The tests kill it at any step.

`python worker.py <destination> <variant> <step>` prints a line and stops when it reaches the step.
Without a step it runs to its end. The external system is the table `request`: one row for each
request, in a transaction of its own.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg

from idem_pg import Effect, Found, Idem, Lease, OnUnknown, UnknownCall, lease
from idem_pg.lease_rules import RENEWAL_THREAD

DESTINATION, VARIANT, STOP = [*sys.argv[1:], ""][:3]

STEPS = ["acquire", "begin", "finish", "complete"]
"""The transactions of an attempt, in their order."""


def reach(step: str) -> None:
    """Waits until this process is killed, if it stops at this step."""
    if step == STOP:
        print("stopped", flush=True)
        sys.stdin.read()


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
        connection.execute("INSERT INTO request VALUES (%s, %s)", [DESTINATION, key])
    reach("after request")
    return {"key": key}


def look(call: UnknownCall) -> Found | None:
    with psycopg.connect() as connection:
        row = connection.execute(
            "SELECT key FROM request WHERE destination = %s", [DESTINATION]
        ).fetchone()
    return None if row is None else Found({"key": row[0]})


def work(held: Lease) -> None:
    variants: dict[str, Callable[[], Any]] = {
        "look": lambda: held.once("charge", 1, request, on_unknown=look),
        "repeat": lambda: held.once("charge", 1, request, on_unknown=OnUnknown.REPEAT),
        "careless": lambda: request("no key"),
    }
    held.record(Effect("charged", variants[VARIANT]()))


def main() -> None:
    # The lease is short, so that the next process waits briefly after this one is killed.
    while True:
        found = lease(Source(), "m", DESTINATION, dt.timedelta(milliseconds=500))
        if isinstance(found, Lease):
            with found:
                work(found)
            return
        with psycopg.connect() as connection:
            if Idem(connection).is_claimed("m", DESTINATION):
                return


if __name__ == "__main__":
    main()
