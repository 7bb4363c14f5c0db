"""The functions of idem in the transaction of a connection."""

from __future__ import annotations

from typing import Any

from .blocking import blocking
from .executors import ASYNCHRONOUS, SYNCHRONOUS
from .functions import Functions


class AsyncIdem(Functions):
    """idem's functions on a connection, cursor or session in whose transaction the work is done.

    It accepts a connection of asyncpg, an AsyncConnection or AsyncCursor of psycopg, and an
    AsyncConnection or AsyncSession of SQLAlchemy. It never begins, commits, rolls back or retries.
    Every method raises IdemError for an error of the server.
    """

    def __init__(self, connection: Any) -> None:
        super().__init__(connection, ASYNCHRONOUS, "AsyncIdem")


class Idem:
    """The same without asyncio.

    It accepts a connection or cursor of psycopg, a Connection or Session of SQLAlchemy, and the
    connection of Django.
    """

    def __init__(self, connection: Any) -> None:
        self._asynchronous = Functions(connection, SYNCHRONOUS, "Idem")

    run = blocking(Functions.run)
    claim = blocking(Functions.claim)
    try_claim = blocking(Functions.try_claim)
    try_claim_batch = blocking(Functions.try_claim_batch)
    is_claimed = blocking(Functions.is_claimed)
    record = blocking(Functions.record)
    try_record = blocking(Functions.try_record)
    effects = blocking(Functions.effects)
    send = blocking(Functions.send)
    acquire = blocking(Functions.acquire)
    extend = blocking(Functions.extend)
    complete = blocking(Functions.complete)
    release = blocking(Functions.release)
    bury = blocking(Functions.bury)
    receive = blocking(Functions.receive)
    next = blocking(Functions.next)
    next_wait = blocking(Functions.next_wait)
    reject = blocking(Functions.reject)
    begin_call = blocking(Functions.begin_call)
    finish_call = blocking(Functions.finish_call)
    fail_call = blocking(Functions.fail_call)
    calls = blocking(Functions.calls)
