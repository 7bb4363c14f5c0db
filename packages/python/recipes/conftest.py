"""Fixtures of the tests of the consumers."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from harness import Database


@pytest.fixture
def database() -> Iterator[Database]:
    with psycopg.connect(autocommit=True) as connection:
        yield Database(connection, "billing.charge")
