"""Sources whose transactions are not READ COMMITTED, as the functions of leases need it."""

from __future__ import annotations

from typing import Any

import pytest
from http_fixtures import ask, service
from test_http_leases import HELD, until_renewed
from test_http_once import assert_once

LEVELS = ["REPEATABLE READ", "SERIALIZABLE"]
of_each_source = pytest.mark.parametrize(
    ("driver", "isolation"),
    [(driver, LEVELS[0]) for driver in ("asyncpg", "psycopg", "engine+asyncpg", "django")]
    + [(driver, LEVELS[1]) for driver in ("psycopg", "session+psycopg", "django")],
)


@of_each_source
@pytest.mark.parametrize("mode", ["transaction", "lease"])
def test_isolated_source_records_the_response(mode: Any, driver: str, isolation: str) -> None:
    with service(mode=mode, driver=driver, isolation=isolation) as fixture:
        fixture.database.execute(
            f"ALTER TABLE {fixture.database.table} "
            "ADD COLUMN isolation text DEFAULT current_setting('transaction_isolation')"
        )
        assert_once(fixture)
        used = f"SELECT DISTINCT isolation FROM {fixture.database.table}"
        assert fixture.database.value(used) == isolation.lower()


@of_each_source
def test_lease_of_an_isolated_source_is_renewed(driver: str, isolation: str) -> None:
    """Goal: a handler that works longer than its lease runs once."""
    with service(mode="lease", driver=driver, isolation=isolation, lease_ms=1500) as fixture:
        first = fixture.start(HELD)
        fixture.until_holding(1)
        until_renewed(fixture)
        fixture.release()
        first.result().assert_run(201, 1)
        fixture.send(ask("k")).assert_replay_of(first.result())
        assert fixture.runs == 1


@of_each_source
def test_lease_of_an_isolated_source_is_released(driver: str, isolation: str) -> None:
    """Goal: after a failure the next request runs at once, and not after the lease."""
    with service(mode="lease", driver=driver, isolation=isolation) as fixture:
        fixture.send(ask("k").with_header("x-status", "503")).assert_run(503, 1)
        fixture.send(ask("k")).assert_run(201, 2)
