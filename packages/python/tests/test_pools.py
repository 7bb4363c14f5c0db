"""Pools are rejected: they would execute a claim on another connection than the work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest
import sqlalchemy
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from idem_pg import AsyncIdem, Idem

URL = "postgresql+psycopg://"

POOLS: dict[str, Callable[[], Any]] = {
    "psycopg": lambda: ConnectionPool(min_size=0, max_size=1, open=False),
    "psycopg with asyncio": lambda: AsyncConnectionPool(min_size=0, max_size=1, open=False),
    "asyncpg": lambda: asyncpg.create_pool(min_size=0),
    "engine": lambda: sqlalchemy.create_engine(URL),
    "connection of the pool of an engine": lambda: sqlalchemy.create_engine(URL).raw_connection,
    "sessionmaker": sessionmaker,
    "asynchronous engine": lambda: create_async_engine(URL),
    "async_sessionmaker": async_sessionmaker,
}


@pytest.mark.parametrize("idem", [Idem, AsyncIdem])
@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
def test_pool_is_rejected(pool: Callable[[], Any], idem: Callable[[Any], Any]) -> None:
    async def call() -> None:
        # The pools of asyncio need an event loop.
        with pytest.raises(TypeError, match="needs the connection or session of a transaction"):
            idem(pool())

    asyncio.run(call())
