"""Leases that are renewed in the background."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy
from conftest import until
from connections import ENGINE, PSYCOPG
from psycopg_pool import ConnectionPool
from sqlalchemy.orm import sessionmaker

from idem_pg import (
    CallRefusedError,
    Duplicate,
    Effect,
    Exhausted,
    Held,
    Idem,
    IdemError,
    InProgress,
    Lease,
    LeaseLostError,
    LeaseNotCompletedError,
    OnUnknown,
    UnknownResultError,
    lease,
)
from idem_pg.lease_rules import RENEWAL_THREAD
from idem_pg.transactions import BlockingTransactions

SHORT = dt.timedelta(seconds=6)
"""The duration of a lease that is renewed soon: see `renewed_soon`."""


def renewed_soon(held: Held) -> Held:
    """Lets the first renewal begin 0.2 seconds after the lease, and not after 2 seconds."""
    return dataclasses.replace(held, asked_at=held.asked_at - SHORT.total_seconds() / 3 + 0.2)


@pytest.fixture
def destination() -> str:
    return f"python.leases.{uuid.uuid4()}"


def leased(
    source: Any, destination: str, duration: dt.timedelta = dt.timedelta(minutes=1)
) -> Lease:
    found = lease(source, "m", destination, duration)
    assert isinstance(found, Lease), found
    return Lease(source, renewed_soon(found.held)) if duration == SHORT else found


def sources() -> list[Any]:
    from django.db import connection

    def function() -> Any:
        return psycopg.connect()

    return [
        pytest.param(function, id="function"),
        pytest.param(ENGINE, id="sqlalchemy.Engine"),
        pytest.param(sessionmaker(ENGINE), id="sqlalchemy.sessionmaker"),
        pytest.param(connection, id="django"),
    ]


@pytest.mark.parametrize("source", sources())
def test_end_of_the_block_completes_the_message(
    source: Any, destination: str, observer: psycopg.Connection
) -> None:
    with leased(source, destination, SHORT) as work:
        expiry = expiry_of(observer, destination)
        until("the lease is renewed", lambda: expiry_of(observer, destination) > expiry)
        assert work.held.attempt == 1
        work.record(Effect("t", 1))
    assert len(Idem(observer).effects("m", destination)) == 1
    assert lease(source, "m", destination) == Duplicate()


@pytest.mark.parametrize("source", sources())
def test_lease_is_acknowledged_only_after_its_completion(source: Any, destination: str) -> None:
    work = leased(source, destination)
    with work:
        assert work.settlement == "redeliver"
        work.give_back()
    assert work.settlement == "redeliver"
    work = leased(source, destination)
    with contextlib.suppress(LookupError), work:
        raise LookupError
    assert work.settlement == "redeliver"


def test_lease_is_acknowledged_after_its_completion(
    pool: ConnectionPool, destination: str, observer: psycopg.Connection
) -> None:
    with leased(pool, destination) as work:
        pass
    assert work.settlement == "acknowledge"
    observer.execute("SELECT idem_forget('m', %s)", [destination])
    with leased(pool, destination) as work:
        with pool.connection() as connection:
            work.complete(connection)
        before = work.settlement
    assert (before, work.settlement) == ("redeliver", "acknowledge")


def isolated_sources() -> list[Any]:
    """Sources whose transactions are not READ COMMITTED."""
    from django.db import connections

    def psycopg_connection() -> Any:
        connection = psycopg.connect()
        connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        return connection

    def psycopg_setting() -> Any:
        return psycopg.connect(options="-c default_transaction_isolation=repeatable\\ read")

    engine = sqlalchemy.create_engine(
        PSYCOPG, poolclass=sqlalchemy.NullPool, isolation_level="REPEATABLE READ"
    )
    return [
        pytest.param(psycopg_connection, id="psycopg"),
        pytest.param(psycopg_setting, id="setting"),
        pytest.param(engine, id="sqlalchemy.Engine"),
        pytest.param(connections["serializable"], id="django"),
    ]


@pytest.mark.parametrize("source", isolated_sources())
def test_lease_of_isolated_transactions_is_renewed(
    source: Any, destination: str, observer: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    with leased(source, destination, SHORT) as work:
        expiry = expiry_of(observer, destination)
        until(
            "the lease is renewed",
            lambda: expiry_of(observer, destination) > expiry or bool(caplog.records),
        )
        assert work.once("s", 1, lambda key: key, on_unknown=OnUnknown.FAIL)
        work.record(Effect("t", 1))
    assert caplog.records == []
    assert len(Idem(observer).effects("m", destination)) == 1


@pytest.mark.parametrize("source", isolated_sources())
def test_lease_of_isolated_transactions_is_released(
    source: Any, destination: str, observer: psycopg.Connection
) -> None:
    observer.execute("SELECT idem_configure_retries(%s, base => '0')", [destination])
    with pytest.raises(ValueError, match="broken"), leased(source, destination):
        raise ValueError("broken")
    again = leased(source, destination)
    assert (again.held.attempt, again.held.last_error) == (2, "ValueError: broken")


def test_source_that_cannot_be_read_committed_fails_before_the_work(
    destination: str, caplog: pytest.LogCaptureFixture
) -> None:
    @contextlib.contextmanager
    def query_first() -> Iterator[Any]:
        with psycopg.connect() as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.execute("SELECT 1")
            yield connection

    opened = BlockingTransactions(query_first)
    with pytest.raises(ValueError, match="broken"), leased(opened, destination):
        raise ValueError("broken")
    assert "cannot release the lease" in caplog.text
    assert "must be called before any query" in caplog.text
    with pytest.raises(IdemError, match="must be called before any query"):
        lease(opened, "m-2", destination)


def expiry_of(observer: psycopg.Connection, destination: str) -> float:
    """Returns the end of the lease, in seconds."""
    sql = "SELECT CAST(EXTRACT(EPOCH FROM until) AS float8) FROM idem.leases WHERE destination = %s"
    row = observer.execute(sql, [destination]).fetchone()
    assert row is not None, "the lease has expired"
    found = row[0]
    assert isinstance(found, float)
    return found


def test_pool_is_a_source(pool: ConnectionPool, destination: str) -> None:
    with leased(pool, destination):
        assert isinstance(lease(pool, "m", destination), InProgress)
    assert lease(pool, "m", destination) == Duplicate()


def test_connection_is_no_source(observer: psycopg.Connection, destination: str) -> None:
    with pytest.raises(TypeError, match=r"not psycopg\.Connection"):
        lease(observer, "m", destination)


def test_message_is_completed_with_the_writes_of_the_user(
    pool: ConnectionPool, destination: str, observer: psycopg.Connection
) -> None:
    work_id = f"w-{uuid.uuid4()}"
    with leased(pool, destination) as work, pool.connection() as connection:
        connection.execute("INSERT INTO work VALUES (%s)", [work_id])
        ids = work.complete(connection, Effect("t", 1))
        assert not Idem(observer).is_claimed("m", destination)
    assert [effect.message_id for effect in Idem(observer).effects("m", destination)] == ids
    row = observer.execute("SELECT count(*) FROM work WHERE id = %s", [work_id]).fetchone()
    assert row == (1,)


def test_completion_that_was_rolled_back_is_an_error(
    pool: ConnectionPool, destination: str
) -> None:
    with pytest.raises(LeaseNotCompletedError), leased(pool, destination) as work:
        with pool.connection() as connection:
            work.complete(connection)
            connection.rollback()
    assert isinstance(lease(pool, "m", destination), InProgress)


def test_exception_releases_the_message_with_its_error(
    pool: ConnectionPool, destination: str, observer: psycopg.Connection
) -> None:
    observer.execute("SELECT idem_configure_retries(%s, base => '0')", [destination])
    with pytest.raises(ValueError, match="broken"), leased(pool, destination) as work:
        work.record(Effect("t", 1))
        raise ValueError("broken")
    again = lease(pool, "m", destination)
    assert isinstance(again, Lease)
    assert (again.held.attempt, again.held.last_error) == (2, "ValueError: broken")
    assert Idem(observer).effects("m", destination) == []


def test_end_of_the_program_is_not_counted(pool: ConnectionPool, destination: str) -> None:
    with pytest.raises(KeyboardInterrupt), leased(pool, destination):
        raise KeyboardInterrupt
    assert leased(pool, destination).held.attempt == 1


def test_given_back_message_is_not_counted(pool: ConnectionPool, destination: str) -> None:
    with leased(pool, destination) as work:
        work.give_back()
    assert leased(pool, destination).held.attempt == 1


def test_final_error_leaves_no_attempt(pool: ConnectionPool, destination: str) -> None:
    with pytest.raises(CallRefusedError), leased(pool, destination):
        raise CallRefusedError("no such account")
    exhausted = lease(pool, "m", destination)
    assert isinstance(exhausted, Exhausted)
    assert exhausted.held.last_error == "CallRefusedError: no such account"


def steal(observer: psycopg.Connection, held: Held, destination: str) -> Held:
    """Ends the lease, as if it had expired, and acquires it for another process."""
    idem = Idem(observer)
    idem.release(held)
    other = idem.acquire("m", destination)
    assert isinstance(other, Held)
    return other


def test_lost_lease_is_noticed_and_nothing_is_written(
    pool: ConnectionPool, destination: str, observer: psycopg.Connection
) -> None:
    with pytest.raises(LeaseLostError), leased(pool, destination, SHORT) as work:
        other = steal(observer, work.held, destination)
        until("the lease is lost", lambda: work.is_lost)
        work.record(Effect("t", 1))
    assert not Idem(observer).is_claimed("m", destination)
    Idem(observer).complete(other)


def test_completion_after_a_lost_lease_fails(
    pool: ConnectionPool, destination: str, observer: psycopg.Connection
) -> None:
    with pytest.raises(LeaseLostError), leased(pool, destination) as work:
        steal(observer, work.held, destination)
        with pool.connection() as connection:
            work.complete(connection, Effect("t", 1))
    assert not Idem(observer).is_claimed("m", destination)


def test_message_that_another_process_completed_is_completed(
    pool: ConnectionPool, destination: str, observer: psycopg.Connection
) -> None:
    """A commit whose reply was lost looks the same to the process that repeats it."""
    with leased(pool, destination) as work:
        Idem(observer).complete(work.held)
    assert lease(pool, "m", destination) == Duplicate()


def test_renewal_survives_lost_connections(
    destination: str, observer: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    lost: list[int] = []

    def source() -> psycopg.Connection:
        connection = psycopg.connect()
        if expiries and len(lost) < 3:
            lost.append(connection.info.backend_pid)
            observer.execute("SELECT pg_terminate_backend(%s, 60000)", [lost[-1]])
        return connection

    expiries: list[float] = []
    with leased(source, destination, dt.timedelta(seconds=3)) as work:
        expiries.append(expiry_of(observer, destination))
        until("the lease is renewed", lambda: expiry_of(observer, destination) > expiries[0])
        assert len(lost) == 3
        assert not work.is_lost
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    assert "cannot renew the lease of message 'm'" in caplog.text


def test_commit_is_repeated_after_its_reply_was_lost(
    destination: str, observer: psycopg.Connection
) -> None:
    failures = iter([True])

    class Lossy:
        """Loses the reply to the commit of one completion."""

        def __enter__(self) -> psycopg.Connection:
            self.connection = psycopg.connect()
            return self.connection.__enter__()

        def __exit__(self, *details: Any) -> None:
            self.connection.__exit__(*details)
            if details[0] is None and completing and next(failures, False):
                raise psycopg.OperationalError("the connection is lost")

    completing = False
    with leased(Lossy, destination) as work:
        work.record(Effect("t", 1))
        completing = True
    assert next(failures, False) is False
    assert len(Idem(observer).effects("m", destination)) == 1


def test_value_that_cannot_be_sent_fails_at_once(pool: ConnectionPool, destination: str) -> None:
    """The error is raised unchanged by two layers, so it must not become its own cause."""
    with pytest.raises(UnicodeEncodeError) as wrong:
        lease(pool, "a\ud83e", destination)
    assert wrong.value.__cause__ is not wrong.value


def test_error_of_the_block_is_not_hidden_by_a_release_that_fails(
    destination: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ConnectionPool(min_size=0, max_size=1, timeout=0.1) as pool:
        work = leased(pool, destination)
        with pytest.raises(ValueError, match="broken"), pool.connection(), work:
            raise ValueError("broken")
    assert "cannot release the lease of message 'm'" in caplog.text
    assert "PoolTimeout" in caplog.text


def test_engine_of_sqlalchemy_is_not_disposed(destination: str) -> None:
    with leased(ENGINE, destination):
        pass
    with ENGINE.connect() as connection:
        assert connection.execute(sqlalchemy.text("SELECT 1")).scalar() == 1


def test_repeated_completion_records_its_effects_once(
    pool: ConnectionPool, destination: str, observer: psycopg.Connection
) -> None:
    with leased(pool, destination) as work:
        work.record(Effect("recorded", 1))
        for is_last in [False, True]:
            with pool.connection() as connection:
                work.complete(connection, Effect("t", 1))
                if not is_last:
                    connection.rollback()
    topics = [effect.topic for effect in Idem(observer).effects("m", destination)]
    assert topics == ["recorded", "t"]


def test_error_in_an_open_transaction_ends_the_block(
    pool: ConnectionPool, destination: str, few_attempts: None
) -> None:
    """The release would wait for the transaction of the same program."""
    with pytest.raises(ValueError, match="broken"), psycopg.connect() as connection:
        with leased(pool, destination) as work:
            work.complete(connection)
            raise ValueError("broken")
    assert isinstance(lease(pool, "m", destination), InProgress)


def test_effect_that_is_no_json_fails_at_once(pool: ConnectionPool, destination: str) -> None:
    with pytest.raises(TypeError), leased(pool, destination) as work:
        work.record(Effect("t", object()))
        pytest.fail("the effect is accepted")
    assert isinstance(lease(pool, "m", destination), InProgress)


def test_effect_that_the_server_rejects_releases_the_message(
    pool: ConnectionPool, destination: str, observer: psycopg.Connection
) -> None:
    observer.execute("SELECT idem_configure_retries(%s, base => '0')", [destination])
    with pytest.raises(IdemError) as rejected, leased(pool, destination) as work:
        work.record(Effect("", 1))
    assert rejected.value.sqlstate == "22023"
    again = leased(pool, destination)
    assert again.held.last_error is not None
    assert again.held.last_error.startswith("IdemError: ")


def test_lease_is_lost_when_its_extension_hangs(destination: str) -> None:
    end = threading.Event()

    def source() -> Any:
        if threading.current_thread().name == RENEWAL_THREAD:
            end.wait(60)
        return psycopg.connect()

    work = leased(source, destination, dt.timedelta(milliseconds=200))
    with contextlib.suppress(LeaseLostError), work:
        until("the lease is lost", lambda: work.is_lost)
        end.set()


def test_begin_of_another_process_after_a_lost_reply_is_unknown(
    destination: str, observer: psycopg.Connection
) -> None:
    """Goal: the call of the other process is not repeated. The own entry was rolled back."""
    losses = iter([True])
    keys: list[str] = []

    class Lossy:
        def __enter__(self) -> psycopg.Connection:
            self.connection = psycopg.connect()
            return self.connection.__enter__()

        def __exit__(self, *details: Any) -> None:
            if is_beginning and next(losses, False):
                self.connection.rollback()
                self.connection.close()
                Idem(observer).begin_call("m", destination, "charge", 1)
                raise psycopg.OperationalError("the connection is lost")
            self.connection.__exit__(*details)

    is_beginning = False
    with contextlib.suppress(UnknownResultError), leased(Lossy, destination) as work:
        is_beginning = True
        work.once("charge", 1, keys.append, on_unknown=OnUnknown.FAIL)
    assert keys == []
    (call,) = Idem(observer).calls("m", destination)
    assert (call.state, call.attempt) == ("unknown", 2)


def test_lost_reply_to_the_begin_of_a_call_is_not_unknown(
    destination: str, observer: psycopg.Connection
) -> None:
    """The step is unknown because of this process itself, so the call is made."""
    losses = iter([True])
    keys: list[str] = []

    class Lossy:
        def __enter__(self) -> psycopg.Connection:
            self.connection = psycopg.connect()
            return self.connection.__enter__()

        def __exit__(self, *details: Any) -> None:
            self.connection.__exit__(*details)
            if is_beginning and next(losses, False):
                raise psycopg.OperationalError("the connection is lost")

    is_beginning = False
    with leased(Lossy, destination) as work:
        is_beginning = True
        work.once("charge", 1, keys.append, on_unknown=OnUnknown.FAIL)
    assert len(keys) == 1
    (call,) = Idem(observer).calls("m", destination)
    assert (call.state, call.attempt) == ("done", 2)
