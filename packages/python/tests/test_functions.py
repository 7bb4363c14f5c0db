"""The functions besides claims: leases, the inbox, dead letters and the journal."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from idem_pg import (
    Claimed,
    Dead,
    Duplicate,
    Effect,
    Exhausted,
    Held,
    Idem,
    IdemError,
    InProgress,
)

MINUTE = dt.timedelta(minutes=1)


@pytest.fixture
def destination() -> str:
    return f"python.functions.{uuid.uuid4()}"


@pytest.fixture
def idem(observer: psycopg.Connection) -> Idem:
    """The functions in autocommit mode, so that each call commits."""
    return Idem(observer)


def scalar(observer: psycopg.Connection, sql: str, *parameters: Any) -> Any:
    row = observer.execute(sql, parameters).fetchone()
    assert row is not None
    return row[0]


def held(acquired: Any) -> Held:
    assert isinstance(acquired, Held), acquired
    return acquired


def test_time_without_a_time_zone_is_an_error(idem: Idem, destination: str) -> None:
    naive = dt.datetime(2030, 1, 31, 12)
    calls: list[Callable[[], object]] = [
        lambda: idem.claim("m", destination, sent_at=naive),
        lambda: idem.receive("m", destination, {}, deliver_after=naive),
        lambda: idem.try_record("m", destination, Effect("t", {}, deliver_after=naive)),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="has no time zone"):
            call()
    assert idem.receive("m", destination, {}, deliver_after=naive.replace(tzinfo=dt.timezone.utc))


def test_settings_of_the_session_change_no_result(destination: str) -> None:
    settings = "-c intervalstyle=iso_8601 -c datestyle=SQL,DMY -c timezone=Asia/Kolkata"
    with psycopg.connect(options=settings, autocommit=True) as connection:
        connection.execute("SET default_transaction_isolation = 'read committed'")
        idem = Idem(connection)
        lease = held(idem.acquire("m", destination, MINUTE))
        other = idem.acquire("m", destination)
        assert isinstance(other, InProgress)
        assert isinstance(other.retry_after, dt.timedelta)
        begun = idem.begin_call("m", destination, "charge", token=lease.token)
        assert begun.state == "new"
        assert idem.calls("m", destination)[0].begun_at <= dt.datetime.now(dt.timezone.utc)
        pause = idem.release(lease, "failed")
        assert isinstance(pause, dt.timedelta)
        assert idem.receive("stored", destination, {})
        (message,) = idem.next(destination)
        age = dt.datetime.now(dt.timezone.utc) - message.received_at
        assert dt.timedelta(0) <= age < MINUTE
        with connection.transaction():
            assert idem.claim("claimed", destination) == Claimed()
            idem.record("claimed", destination, Effect("t", {}))
        with connection.transaction():
            again = idem.claim("claimed", destination)
        assert isinstance(again, Duplicate)
        assert again.handled_at is not None
        (effect,) = idem.effects("claimed", destination)
        assert (effect.deliver_after, effect.recorded_at) == (None, again.handled_at)


def test_lease_is_completed_with_its_effects(idem: Idem, destination: str) -> None:
    mine = held(idem.acquire("m", destination, MINUTE))
    assert (mine.message_id, mine.destination, mine.attempt) == ("m", destination, 1)
    assert mine.last_error is None
    other = idem.acquire("m", destination)
    assert isinstance(other, InProgress)
    assert other.retry_after is not None
    assert dt.timedelta(0) < other.retry_after <= MINUTE
    idem.extend(mine)
    ids = idem.complete(mine, Effect("t", {"n": 1}))
    assert idem.acquire("m", destination) == Duplicate()
    assert [effect.message_id for effect in idem.effects("m", destination)] == ids
    with pytest.raises(IdemError) as lost:
        idem.complete(mine)
    assert lost.value.sqlstate == "55000"


def test_released_message_waits_for_its_retry(
    idem: Idem, destination: str, observer: psycopg.Connection
) -> None:
    observer.execute("SELECT idem_configure_retries(%s, max_attempts => 2)", [destination])
    assert idem.release(held(idem.acquire("m", destination))) is not None
    first = held(idem.acquire("m", destination))
    assert first.attempt == 1
    retry = idem.release(first, "no answer")
    assert retry is not None
    assert dt.timedelta(0) < retry < dt.timedelta(seconds=10)
    assert isinstance(idem.acquire("m", destination), InProgress)


def test_exhausted_message_is_buried(
    idem: Idem, destination: str, observer: psycopg.Connection
) -> None:
    mine = held(idem.acquire("m", destination))
    assert idem.release(mine, "broken", final=True) is None
    exhausted = idem.acquire("m", destination)
    assert isinstance(exhausted, Exhausted)
    assert exhausted.held.last_error == "broken"
    idem.bury(exhausted.held, b"\x00", "broken", headers={"h": 1}, key="k", type="t")
    assert idem.acquire("m", destination) == Dead()
    assert scalar(observer, "SELECT idem_discard('m', %s)", destination)
    assert idem.acquire("m", destination) == Duplicate()


def test_received_message_is_leased_and_completed(idem: Idem, destination: str) -> None:
    assert idem.receive("m-1", destination, {"n": 1}, headers={"h": 1}, key="k", type="t")
    assert not idem.receive("m-1", destination, {"n": 1})
    assert idem.receive(
        "m-2",
        destination,
        b"\x00",
        content_type="x/y",
        deliver_after=dt.datetime.now(dt.timezone.utc),
    )
    assert idem.next_wait(destination, 0)
    first, second = idem.next(destination, max_messages=10, lease=MINUTE, max_bytes=1 << 20)
    assert (first.held.message_id, first.json(), first.headers) == ("m-1", {"n": 1}, {"h": 1})
    assert (first.key, first.type, first.content_type) == ("k", "t", "application/json")
    assert (first.held.attempt, first.lease_expired) == (1, False)
    assert (second.payload, second.content_type) == (b"\x00", "x/y")
    assert first.seq < second.seq
    assert idem.complete(first.held) == []
    assert idem.complete(second.held) == []
    assert idem.next(destination) == []
    assert not idem.next_wait(destination, 0)


def test_rejected_message_is_a_dead_letter(
    idem: Idem, destination: str, observer: psycopg.Connection
) -> None:
    assert idem.reject(0, destination, b"p", "no", headers={"h": 1}, source="q", key="k")
    assert not idem.reject(0, destination, b"p", "again")
    assert idem.reject(None, destination, b"without id", "no id")
    sql = "SELECT count(*) FROM idem.dead_letters WHERE destination = %s"
    assert scalar(observer, sql, destination) == 2


def test_journal_knows_each_call(idem: Idem, destination: str) -> None:
    begun = idem.begin_call("m", destination, "charge", {"cents": 5})
    assert (begun.state, begun.attempt, begun.response) == ("new", 1, None)
    again = idem.begin_call("m", destination, "charge", {"cents": 5})
    assert (again.state, again.attempt) == ("unknown", 2)
    assert again.idempotency_key == begun.idempotency_key
    assert again.begun_at is not None
    idem.finish_call("m", destination, "charge", {"receipt": "ä"})
    done = idem.begin_call("m", destination, "charge", {"cents": 5})
    assert (done.state, done.response) == ("done", {"receipt": "ä"})
    with pytest.raises(IdemError) as other:
        idem.begin_call("m", destination, "charge", {"cents": 6})
    assert other.value.sqlstate == "23000"
    idem.begin_call("m", destination, "mail")
    idem.fail_call("m", destination, "mail", "no such address", retryable=False)
    failed = idem.begin_call("m", destination, "mail")
    assert (failed.state, failed.error) == ("failed", "no such address")
    charge, mail = idem.calls("m", destination)
    assert (charge.step, charge.state, charge.response) == ("charge", "done", {"receipt": "ä"})
    assert (mail.step, mail.state, mail.error) == ("mail", "failed", "no such address")
    assert charge.ended_at is not None


def test_call_with_a_lost_lease_fails(idem: Idem, destination: str) -> None:
    mine = held(idem.acquire("m", destination))
    assert idem.begin_call("m", destination, "a", token=mine.token).state == "new"
    idem.release(mine)
    with pytest.raises(IdemError) as lost:
        idem.begin_call("m", destination, "b", token=mine.token)
    assert lost.value.sqlstate == "55000"


UNSTORABLE = "ä\0\ud83e" + "x" * 3000
STORED = "ä?" + "x" * 1997
"""What is stored of it: 2,000 bytes."""


def test_error_that_cannot_be_stored_is_cleaned(
    idem: Idem, destination: str, observer: psycopg.Connection
) -> None:
    observer.execute("SELECT idem_configure_retries(%s, base => '0')", [destination])
    idem.release(held(idem.acquire("m", destination)), UNSTORABLE)
    again = held(idem.acquire("m", destination))
    assert again.last_error == STORED
    idem.begin_call("m", destination, "s")
    idem.fail_call("m", destination, "s", UNSTORABLE, retryable=False)
    assert idem.calls("m", destination)[0].error == STORED
    idem.bury(again, b"", UNSTORABLE)
    assert idem.reject("m-2", destination, b"", UNSTORABLE)
    letters = observer.execute(
        "SELECT last_error FROM idem.dead_letters WHERE destination = %s", [destination]
    )
    assert letters.fetchall() == [(STORED,)] * 2


def test_text_with_a_zero_byte_is_an_error(idem: Idem, destination: str) -> None:
    """The texts of a message are not changed, because another one could have the result."""
    lease = held(idem.acquire("m", destination))
    calls: list[Callable[[], object]] = [
        lambda: idem.try_claim("a\0b", destination),
        lambda: idem.try_claim_batch(["a", "a\0b"], destination),
        lambda: idem.is_claimed("m", "a\0b"),
        lambda: idem.receive("m", destination, {}, key="a\0b"),
        lambda: idem.bury(lease, b"", "error", content_type="a\0b"),
        lambda: idem.begin_call("m", destination, "a\0b"),
    ]
    for call in calls:
        with pytest.raises(IdemError, match="contains a zero byte") as caught:
            call()
        assert caught.value.sqlstate == "22021"
        assert not caught.value.retryable
    calls = [
        lambda: idem.reject("m-2", destination, b"", "error", headers={"h": "a\0b"}),
        lambda: idem.receive("m-2", destination, {"text": "a\0b"}),
    ]
    for call in calls:
        with pytest.raises(IdemError, match=r"Unicode escape") as caught:
            call()
        assert caught.value.sqlstate == "22P05"
