"""The mode with a lease: behaviour that differs from the mode with a transaction."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from conftest import until
from http_app import build
from http_fixtures import DRIVERS, Fixture, ask, call, disconnecting, run, service, tables_locked

from idem_pg import AsyncLease, Held, Idem

HELD = ask("k").with_header("x-hold")
of_each_driver = pytest.mark.parametrize("driver", [*DRIVERS, "django"])
of_each_framework = pytest.mark.parametrize("driver", ["asyncpg", "django"])


def acquired(fixture: Fixture, lease: timedelta) -> Held:
    """Leases the request with key "k", as another process does."""
    idem = Idem(fixture.database.connection)
    held = idem.acquire("all:k", fixture.database.destination, lease)
    assert isinstance(held, Held)
    return held


@of_each_driver
def test_leased_request_is_recorded_after_a_disconnect(driver: str) -> None:
    with service(mode="lease", driver=driver) as fixture:
        with disconnecting(fixture.port, HELD):
            fixture.until_holding(1)
        fixture.send(ask("k")).assert_problem(409, "in-progress")
        fixture.release()
        until("the response is recorded", lambda: fixture.claims() == 1)
        again = fixture.send(ask("k"))
        assert again.is_replayed
        assert (fixture.runs, fixture.work("k")) == (1, 2)


def test_shutdown_waits_until_leased_requests_are_recorded() -> None:
    with service(mode="lease") as fixture:
        with disconnecting(fixture.port, HELD):
            fixture.until_holding(1)
        assert fixture.state.requests.count == 1

        def left(grace: timedelta) -> int:
            return run(fixture.state.requests.ended(grace))

        assert left(timedelta(milliseconds=100)) == 1
        fixture.release()
        assert left(timedelta(seconds=30)) == 0
        assert (fixture.claims(), fixture.work("k")) == (1, 2)


@of_each_driver
def test_leased_request_survives_the_loss_of_all_connections(driver: str) -> None:
    with service(mode="lease", driver=driver) as fixture:
        first = fixture.start(HELD.with_header("x-status", "404"))
        fixture.until_holding(1)
        fixture.database.until_quiet()
        assert fixture.database.sessions("state = 'idle in transaction'") == 0
        assert fixture.database.terminate() > 0
        until("no session is left", lambda: fixture.database.sessions("true") == 0)
        fixture.release()
        first.result().assert_run(404, 1)
        fixture.send(ask("k")).assert_replay_of(first.result())


def until_renewed(fixture: Fixture) -> None:
    """Waits until the lease of the only request in progress is renewed."""
    sql = (
        "SELECT coalesce(extract(epoch FROM max(until)), 0)::float8 FROM idem.leases "
        f"WHERE destination = '{fixture.database.destination}'"
    )
    first_end = fixture.database.value(sql)
    until("the lease is renewed", lambda: fixture.database.value(sql) > first_end + 0.5)


@of_each_framework
def test_lease_is_renewed_while_the_handler_runs(driver: str) -> None:
    with service(driver=driver, mode="lease", lease_ms=600) as fixture:
        first = fixture.start(HELD)
        fixture.until_holding(1)
        until_renewed(fixture)
        fixture.send(ask("k")).assert_problem(409, "in-progress")
        fixture.release()
        first.result().assert_run(201, 1)
        assert fixture.runs == 1


def test_renewal_closes_its_connection() -> None:
    """Goal: a view that works for long has one connection, and not a second one for its lease."""
    with service(driver="django", mode="lease", lease_ms=3000) as fixture:
        first = fixture.start(HELD)
        fixture.until_holding(1)
        until_renewed(fixture)
        until("only the view has a connection", lambda: fixture.database.sessions("true") == 1)
        fixture.release()
        first.result().assert_run(201, 1)


@of_each_framework
def test_leased_response_is_sent_after_its_record(driver: str) -> None:
    """Invariant: while the record waits, the client has no response, and no other handler runs."""
    with service(driver=driver, mode="lease") as fixture:
        first = fixture.start(HELD)
        fixture.until_holding(1)
        with tables_locked("call_standard"):
            fixture.release()
            until("the handler has ended", lambda: fixture.state.running == 0)
            fixture.database.until_waiting()
            assert fixture.claims() == 0
            fixture.send(ask("k")).assert_problem(409, "in-progress")
            assert not first.done()
        first.result().assert_run(201, 1)
        fixture.send(ask("k")).assert_replay_of(first.result())
        assert fixture.runs == 1


@of_each_driver
def test_lost_lease_returns_the_response_of_the_other_process(driver: str) -> None:
    with service(mode="lease", driver=driver) as fixture:
        first = fixture.start(HELD)
        fixture.until_holding(1)
        fixture.database.expire_leases()
        other = fixture.send(ask("k").with_header("x-size", "7"))
        other.assert_run(201, 2)
        fixture.release()
        for response in (first.result(), fixture.send(ask("k"))):
            response.assert_replay_of(other)
        assert fixture.claims() == 1


@pytest.mark.parametrize("status", ["201", "500"])
def test_view_without_a_lease_gets_in_doubt(status: str) -> None:
    """Goal: a view cannot be stopped, and its response is not the result of the request."""
    with service(driver="django", mode="lease", lease_ms=600) as fixture:
        lost = HELD.with_header("x-until-lost").with_header("x-status", status)
        first = fixture.start(lost)
        fixture.until_holding(1)
        fixture.database.expire_leases()
        other = fixture.start(HELD)
        fixture.until_holding(2)
        fixture.release()
        first.result().assert_problem(503, "in-doubt")
        assert fixture.claims() == 0
        fixture.release()
        other.result().assert_run(201, 2)
        fixture.send(ask("k")).assert_replay_of(other.result())


@of_each_framework
def test_rejected_external_call_gets_in_doubt(driver: str) -> None:
    """Goal: the loss is known before the renewal notices it, and no external call is made."""
    with service(driver=driver, mode="lease") as fixture:
        first = fixture.start(HELD.with_header("x-charge-late"))
        fixture.until_holding(1)
        fixture.database.expire_leases()
        acquired(fixture, timedelta(seconds=30))
        fixture.release()
        first.result().assert_problem(503, "in-doubt")
        assert (fixture.state.charges, fixture.claims()) == (0, 0)


def test_handler_that_loses_its_lease_is_stopped() -> None:
    with service(mode="lease", lease_ms=600) as fixture:
        first = fixture.start(HELD)
        fixture.until_holding(1)
        fixture.database.expire_leases()
        other = fixture.start(HELD)
        fixture.until_holding(2)
        first.result().assert_problem(503, "in-doubt")
        fixture.until_holding(1)
        fixture.release()
        other.result().assert_run(201, 2)
        assert (fixture.work("k"), fixture.claims()) == (2, 1)


@of_each_framework
def test_request_of_a_crashed_process_runs_after_its_lease(driver: str) -> None:
    with service(driver=driver, mode="lease") as fixture:
        acquired(fixture, timedelta(milliseconds=500))
        fixture.send(ask("k")).assert_problem(409, "in-progress")
        fixture.send_until_settled(ask("k")).assert_run(201, 1)


@of_each_framework
def test_request_without_remaining_attempts_is_not_run(driver: str) -> None:
    with service(driver=driver, mode="lease") as fixture:
        destination = fixture.database.destination
        fixture.database.execute(
            f"SELECT idem_configure_retries('{destination}', max_attempts => 1)"
        )
        acquired(fixture, timedelta(milliseconds=1))
        for _ in range(2):
            fixture.send_until_settled(ask("k")).assert_problem(500, "exhausted")
        assert (fixture.runs, fixture.claims()) == (0, 0)


@of_each_framework
def test_external_call_is_not_repeated_after_a_failed_request(driver: str) -> None:
    with service(driver=driver, mode="lease") as fixture:
        charge = ask("k").with_header("x-charge")
        fixture.send(charge.with_header("x-status", "500")).assert_run(500, 1)
        done = fixture.send(charge)
        done.assert_run(201, 2)
        fixture.send(charge).assert_replay_of(done)
        assert fixture.state.charges == 1


@of_each_framework
def test_key_is_bound_to_its_request_when_the_handler_begins(driver: str) -> None:
    with service(driver=driver, mode="lease") as fixture:
        fixture.send(ask("k").with_header("x-status", "500")).assert_run(500, 1)
        for _ in range(2):
            other = fixture.send(ask("k").to(body=b"another body"))
            other.assert_problem(422, "mismatch")
        fixture.send(ask("k")).assert_run(201, 2)


@of_each_framework
def test_completed_request_keeps_its_response(driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a check that fails after the commit does not hide the response."""

    def fails(*_: Any) -> bool:
        raise ValueError("the check fails")

    with service(driver=driver, mode="lease") as fixture:
        with monkeypatch.context() as patched:
            patched.setattr(AsyncLease, "_is_claimed", fails)
            first = fixture.send(ask("k"))
        first.assert_run(201, 1)
        fixture.send(ask("k")).assert_replay_of(first)


def test_external_call_in_a_transaction_fails() -> None:
    """Goal: the journal of a call is never rolled back, as it could be with ATOMIC_REQUESTS."""
    with service(driver="django", mode="lease") as fixture:
        assert fixture.send(ask("k").with_header("x-charge-atomic")).status == 500
        assert (fixture.state.charges, fixture.claims()) == (0, 0)
        fixture.send(ask("k").with_header("x-charge")).assert_run(201, 2)
        assert fixture.state.charges == 1


def test_view_that_ends_autocommit_mode_gets_in_doubt() -> None:
    """Goal: no success without a record."""
    with service(driver="django", mode="lease") as fixture:
        fixture.send(ask("k").with_header("x-no-commit")).assert_problem(503, "in-doubt")
        fixture.database.until_quiet()
        assert (fixture.claims(), fixture.work("k")) == (0, 0)


def test_view_that_has_lost_its_connection_is_recorded() -> None:
    """Goal: the completion does not use a connection that a statement of the view has shown lost.

    Django replaces such a connection between requests only.
    """
    with service(driver="django", mode="lease") as fixture:
        request = HELD.with_header("x-end", "SELECT 1").with_header("x-ignore-end")
        first = fixture.start(request)
        fixture.until_holding(1)
        fixture.database.until_quiet()
        assert fixture.database.terminate() > 0
        until("no session is left", lambda: fixture.database.sessions("true") == 0)
        fixture.release()
        first.result().assert_run(201, 1)
        fixture.send(ask("k")).assert_replay_of(first.result())


class NotCommittedError(Exception):
    """Rolls a transaction back."""


def test_source_that_does_not_commit_the_completion_gets_503() -> None:
    """Goal: no success without a record."""
    with service(mode="lease") as fixture:
        pool = fixture.state.source

        @contextlib.asynccontextmanager
        async def source() -> AsyncIterator[Any]:
            with contextlib.suppress(NotCommittedError):
                async with pool.acquire() as connection, connection.transaction():
                    yield connection
                    if await connection.fetchval(COMPLETED, fixture.config.destination):
                        raise NotCommittedError

        fixture.state.source = source
        app = build(fixture.config, fixture.state)
        fixture.state.source = pool
        start, body = run(call(app, ask("k")))
        assert start["status"] == 503
        assert b"urn:idem:in-doubt" in body["body"]
        assert fixture.claims() == 0


COMPLETED = "SELECT EXISTS (SELECT FROM idem.inbox WHERE destination = $1)"
