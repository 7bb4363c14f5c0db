"""Fixtures. PGHOST, PGPORT, PGUSER and PGDATABASE name a database with the extension."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator

import django.db
import psycopg
import pytest
from django.conf import settings
from psycopg_pool import ConnectionPool

DEADLINE = 60.0
"""Seconds until a state that a test waits for."""


def until(what: str, is_reached: Callable[[], bool]) -> None:
    """Waits for a state. Fails after the deadline."""
    deadline = time.monotonic() + DEADLINE
    while not is_reached():
        assert time.monotonic() < deadline, f"not reached: {what}"
        time.sleep(0.01)


@pytest.fixture
def observer() -> Iterator[psycopg.Connection]:
    """A second connection in autocommit mode, which sees what is committed."""
    with psycopg.connect(autocommit=True) as connection:
        yield connection


@pytest.fixture
def pool() -> Iterator[ConnectionPool]:
    with ConnectionPool(min_size=0, max_size=4, open=True) as pool:
        yield pool


@pytest.fixture
def message_id() -> str:
    return f"m-{uuid.uuid4()}"


@pytest.fixture(scope="session", autouse=True)
def environment() -> Iterator[None]:
    assert "PGHOST" in os.environ, "PGHOST names no server"
    with psycopg.connect(autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS work (id text)")
    yield
    if settings.configured:
        django.db.connections.close_all()
