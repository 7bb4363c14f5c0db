"""Fixtures. PGHOST, PGPORT, PGUSER and PGDATABASE name a database with the extension."""

from __future__ import annotations

import importlib
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


def observing() -> psycopg.Connection:
    """Returns a connection in autocommit mode, which sees what is committed.

    It also configures and releases, at the isolation that these functions need.
    """
    connection = psycopg.connect(autocommit=True)
    connection.execute("SET default_transaction_isolation = 'read committed'")
    return connection


def expire_leases(connection: psycopg.Connection, destination: str) -> None:
    """Ends the leases of a destination, as if their time had passed."""
    for table in ("idem.pending_0", "idem.pending_1"):
        connection.execute(
            f"UPDATE {table} SET due_at = clock_timestamp() - interval '1 second' WHERE "
            "destination = (SELECT id FROM idem.destination WHERE name = %s)".encode(),
            [destination],
        )


@pytest.fixture
def observer() -> Iterator[psycopg.Connection]:
    """A second connection: see `observing`."""
    with observing() as connection:
        yield connection


@pytest.fixture
def pool() -> Iterator[ConnectionPool]:
    with ConnectionPool(min_size=0, max_size=4, open=True) as pool:
        yield pool


@pytest.fixture
def few_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a short transaction fail sooner when it cannot succeed."""
    # The package exports a function with the name of the module.
    module = importlib.import_module("idem_pg.transactions")
    monkeypatch.setattr(module, "ATTEMPTS", 2)


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
