"""Stops a recipe between a commit and the acknowledgement, while a test holds an advisory lock.

Python imports this module at its start, if this folder is in PYTHONPATH.
"""

from __future__ import annotations

import psycopg
from psycopg import AsyncConnection, Connection

PASS = "SELECT pg_advisory_lock_shared(1)"

_commit, _commit_async = Connection.commit, AsyncConnection.commit


def commit(connection: Connection) -> None:
    _commit(connection)
    barrier = psycopg.connect(autocommit=True)
    barrier.execute(PASS)
    barrier.close()


async def commit_async(connection: AsyncConnection) -> None:
    await _commit_async(connection)
    barrier = await AsyncConnection.connect(autocommit=True)
    await barrier.execute(PASS)
    await barrier.close()


Connection.commit = commit
AsyncConnection.commit = commit_async
