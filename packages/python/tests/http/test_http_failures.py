"""Failures while a request is processed."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from conftest import until
from http_app import opened
from http_django_app import direct_alias
from http_fixtures import (
    DRIVERS,
    KINDS,
    MODES,
    OTHER_DRIVERS,
    TRANSACTIONS,
    Answer,
    Fixture,
    ask,
    database,
    disconnecting,
    run,
    service,
    service_on,
)
from http_proxy import Cut, proxy

ASGI_DRIVERS = sorted({*DRIVERS, *OTHER_DRIVERS})
of_each_driver = pytest.mark.parametrize("driver", [*ASGI_DRIVERS, "django"])
of_asgi = pytest.mark.parametrize("driver", ASGI_DRIVERS)
HELD = ask("k").with_header("x-hold")


@of_asgi
def test_disconnect_rolls_back_and_a_repeated_request_runs(driver: str) -> None:
    with service(driver=driver) as fixture:
        with disconnecting(fixture.port, HELD):
            fixture.until_holding(1)
        fixture.until_no_handler_runs()
        fixture.database.until_quiet()
        fixture.database.assert_untouched()
        again = fixture.send_until_settled(ask("k"))
        again.assert_run(201, 2)
        assert (fixture.work("k"), fixture.claims()) == (2, 1)
        fixture.send(ask("k")).assert_replay_of(again)


@of_asgi
def test_disconnect_during_a_statement_rolls_back(driver: str) -> None:
    with service(driver=driver) as fixture:
        request = ask("k").with_header("x-lock", str(fixture.database.lock))
        with fixture.database.locked():
            with disconnecting(fixture.port, request):
                fixture.database.until_waiting()
            fixture.until_no_handler_runs()
            fixture.database.until_quiet()
            fixture.database.assert_untouched()
        fixture.send_until_settled(ask("k")).assert_run(201, 2)


@of_asgi
def test_disconnect_during_the_commit_does_not_stop_it(driver: str) -> None:
    with service(driver=driver) as fixture:
        fixture.database.wait_at_commit()
        with fixture.database.locked():
            with disconnecting(fixture.port, ask("k")):
                fixture.database.until_waiting()
            fixture.send(ask("k")).assert_problem(409, "in-progress")
            assert fixture.database.sessions("wait_event_type = 'Lock'") == 1
        until("the request is committed", lambda: fixture.claims() == 1)
        again = fixture.send(ask("k"))
        assert again.is_replayed
        assert (again.header("x-run"), fixture.runs, fixture.work("k")) == ("1", 1, 2)


@of_each_driver
def test_request_fails_when_its_connection_is_terminated(driver: str) -> None:
    with service(driver=driver) as fixture:
        killed = fixture.start(HELD)
        fixture.until_holding(1)
        assert fixture.database.terminate("state = 'idle in transaction'") == 1
        fixture.database.until_quiet()
        fixture.release()
        killed.result().assert_problem(503, "unavailable")
        fixture.database.assert_untouched()
        fixture.send(ask("k")).assert_run(201, 2)


@of_asgi
def test_handler_that_ignores_a_lost_connection_gets_503(driver: str) -> None:
    """Goal: the later errors of a driver do not tell that the connection is lost."""
    with service(driver=driver) as fixture:
        request = HELD.with_header("x-end", "SELECT 1;SELECT 1").with_header("x-ignore-end")
        killed = fixture.start(request)
        fixture.until_holding(1)
        assert fixture.database.terminate("state = 'idle in transaction'") == 1
        fixture.database.until_quiet()
        fixture.release()
        killed.result().assert_problem(503, "unavailable")
        fixture.database.assert_untouched()


@of_asgi
@pytest.mark.parametrize("mode", MODES)
def test_terminated_idle_connections_fail_no_request(driver: str, mode: str) -> None:
    with service(driver=driver, mode=mode) as fixture:
        fixture.send(ask("first")).assert_run(201, 1)
        fixture.database.until_quiet()
        assert fixture.database.terminate() > 0
        until("no session is left", lambda: fixture.database.sessions("true") == 0)
        fixture.send(ask("second")).assert_run(201, 2)


@pytest.mark.parametrize("options", [*KINDS.values(), {"driver": "psycopg"}])
def test_unreachable_database_gets_503_and_runs_no_handler(
    options: dict[str, Any], few_attempts: None
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with database() as found:
        config = found.config(**options, pool_timeout_s=0.1)
        config.host, config.port = "127.0.0.1", port
        with service_on(found, config) as fixture:
            fixture.send(ask("k")).assert_problem(503, "unavailable")
            assert fixture.runs == 0


@pytest.mark.parametrize("kind", KINDS)
def test_exception_leaves_no_effect(kind: str) -> None:
    with service(**KINDS[kind]) as fixture:
        raised = fixture.send(ask("k").with_header("x-raise"))
        assert (raised.status, raised.header("x-run")) == (500, None)
        until("no claim is left", lambda: fixture.claims() == 0)
        if kind in TRANSACTIONS:
            fixture.database.assert_untouched()
        # At once: the attempt does not count, so the request does not wait for a retry.
        fixture.send(ask("k")).assert_run(201, 2)


@of_each_driver
def test_terminated_commit_gets_503_and_a_repeated_request_runs(driver: str) -> None:
    """Goal: a commit that is interrupted is in doubt, also if it had no effect."""
    with service(driver=driver) as fixture:
        fixture.database.wait_at_commit()
        with fixture.database.locked():
            sent = fixture.start(ask("k"))
            fixture.database.until_waiting()
            assert fixture.database.terminate("wait_event_type = 'Lock'") == 1
            sent.result().assert_problem(503, "in-doubt")
        fixture.database.assert_untouched()
        fixture.send_until_settled(ask("k")).assert_run(201, 2)
        assert (fixture.work("k"), fixture.claims()) == (2, 1)


@of_each_driver
def test_rejected_commit_gets_500_and_leaves_nothing(driver: str) -> None:
    """Goal: an ERROR at the commit is a certain rollback, so it is not in doubt."""
    with service(driver=driver) as fixture:
        table = fixture.database.table
        fixture.database.execute(
            f"ALTER TABLE {table} ADD UNIQUE (id) DEFERRABLE INITIALLY DEFERRED"
        )
        fixture.send(ask("k")).assert_problem(500, "failed")
        fixture.database.assert_untouched()
        fixture.database.execute(f"ALTER TABLE {table} DROP CONSTRAINT {table}_id_key")
        fixture.send(ask("k")).assert_run(201, 2)


@of_each_driver
@pytest.mark.parametrize("cut", ["before", "after"])
def test_lost_reply_to_the_commit_gets_503(driver: str, cut: Cut) -> None:
    with proxy() as between, database() as found:
        config = found.config(driver=driver)
        config.host, config.port = "127.0.0.1", between.port
        with service_on(found, config) as fixture:
            between.cut_once(cut)
            fixture.send(ask("k")).assert_problem(503, "in-doubt")
            assert between.cuts == 1
            found.until_quiet()
            is_committed = cut == "after"
            assert (fixture.work("k"), fixture.claims()) == ((2, 1) if is_committed else (0, 0))
            again = fixture.send_until_settled(ask("k"))
            assert (again.status, again.is_replayed) == (201, is_committed)
            assert (fixture.work("k"), fixture.claims()) == (2, 1)
            assert fixture.runs == (1 if is_committed else 2)


@of_each_driver
@pytest.mark.parametrize("cut", ["before", "after"])
def test_ambiguous_commit_of_a_lease_is_settled(driver: str, cut: Cut) -> None:
    """Goal: the completion is repeated, so the client gets the response of the handler."""
    with proxy() as between, database() as found:
        config = found.config(driver=driver, mode="lease")
        config.host, config.port = "127.0.0.1", between.port
        with service_on(found, config) as fixture:
            with direct_writes(fixture):
                first = held_until_cut(fixture, between, cut)
                assert between.cuts == 1
                first.assert_run(200, 1)
                fixture.send(ask("k")).assert_replay_of(first)
                assert (fixture.runs, fixture.claims()) == (1, 1)


@pytest.mark.parametrize("driver", ["asyncpg", "django"])
@pytest.mark.parametrize("cut", ["before", "after"])
def test_finished_handler_that_cannot_be_recorded_gets_in_doubt(
    driver: str, cut: Cut, few_attempts: None
) -> None:
    """Goal: the handler may have had effects outside of the database, so nothing is denied."""
    with proxy() as between, database() as found:
        config = found.config(driver=driver, mode="lease")
        config.host, config.port = "127.0.0.1", between.port
        with service_on(found, config) as fixture, direct_writes(fixture):
            between.is_for_good = True
            held_until_cut(fixture, between, cut).assert_problem(503, "in-doubt")
            assert (fixture.runs, fixture.claims()) == (1, 1 if cut == "after" else 0)


def held_until_cut(fixture: Fixture, between: Any, cut: Cut) -> Answer:
    """Cuts the connection at the COMMIT that completes the lease of a request."""
    sent: Future[Answer] = fixture.start(HELD.with_header("x-status", "200"))
    fixture.until_holding(1)
    fixture.database.until_quiet()
    fixture.release()
    # The writes of the handler do not pass the proxy.
    between.cut_once(cut)
    return sent.result()


@contextlib.contextmanager
def direct_writes(fixture: Fixture) -> Iterator[None]:
    """Gives the handler a source of its own, so that its writes do not pass the proxy."""
    source = fixture.state.source
    if fixture.config.driver == "django":
        fixture.state.source = direct_alias(fixture.config)
        yield
        return
    direct = opened(fixture.database.config(driver=fixture.config.driver))
    fixture.state.source = run(direct.__aenter__())
    try:
        yield
    finally:
        run(direct.__aexit__(None, None, None))
        fixture.state.source = source
