"""The functions besides claims: leases, the inbox, dead letters, the journal and relays."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import psycopg
import pytest

from idem_pg import (
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


def test_exhausted_message_is_buried(idem: Idem, destination: str) -> None:
    mine = held(idem.acquire("m", destination))
    assert idem.release(mine, "broken", final=True) is None
    exhausted = idem.acquire("m", destination)
    assert isinstance(exhausted, Exhausted)
    assert exhausted.held.last_error == "broken"
    idem.bury(exhausted.held, b"\x00", "broken", headers={"h": 1}, key="k", type="t")
    assert idem.acquire("m", destination) == Dead()
    assert idem.discard("m", destination)
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


def test_dead_letters_are_requeued_discarded_and_forwarded(
    idem: Idem, destination: str, observer: psycopg.Connection
) -> None:
    for number in range(6):
        assert idem.reject(
            number, destination, b"p", f"error {number}", headers={"h": 1}, source="q", key="k"
        )
    assert not idem.reject(0, destination, b"p", "again")
    assert idem.reject(None, destination, b"without id", "no id")
    assert idem.requeue(0, destination)
    assert not idem.requeue("unknown", destination)
    assert idem.requeue_all(destination, error_like="error 1") == 1
    assert idem.discard(2, destination)
    assert idem.is_claimed(2, destination)
    assert idem.discard_all(destination, error_like="error 3", max_messages=5) == 1
    relay = f"r-{uuid.uuid4()}"
    observer.execute("SELECT idem_create_relay(%s)", [relay])
    topic = f"t-{uuid.uuid4()}"
    assert isinstance(idem.forward(4, destination, topic), uuid.UUID)
    assert idem.forward_all(destination, topic, error_like="error 5") == 1
    sql = "SELECT count(*) FROM idem.outbox_row WHERE topic = %s"
    assert scalar(observer, sql, topic) == 2
    sql = "SELECT count(*) FROM idem.dead_letters WHERE destination = %s"
    assert scalar(observer, sql, destination) == 1
    observer.execute("SELECT idem_drop_relay(%s)", [relay])


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


def test_relay_delivers_and_parks_effects(
    idem: Idem, destination: str, observer: psycopg.Connection
) -> None:
    relay = f"r-{uuid.uuid4()}"
    observer.execute("SELECT idem_create_relay(%s)", [relay])
    assert idem.relay_partitions(relay) == 1
    assert idem.try_record("m", destination, [Effect("a", 1, key="k"), Effect("b", b"\x01")])
    assert not idem.try_record("m", destination, Effect("a", 1))
    first, second = idem.relay_next(relay, max_effects=10, lease=MINUTE, max_bytes=1 << 20)
    assert (first.topic, first.json(), first.key) == ("a", 1, "k")
    assert (second.payload, second.source_destination) == (b"\x01", destination)
    token = idem.relay_extend(relay, 0, first.token, MINUTE)
    idem.relay_park(relay, 0, token, second.message_id, "no such exchange")
    idem.relay_ack(relay, 0, token)
    assert idem.relay_next(relay) == []
    sql = "SELECT message_id, error FROM idem.parked WHERE relay = %s"
    assert observer.execute(sql, [relay]).fetchone() == (second.message_id, "no such exchange")
    observer.execute("SELECT idem_drop_relay(%s)", [relay])


def test_effects_are_handed_over_to_the_inbox(
    idem: Idem, destination: str, observer: psycopg.Connection
) -> None:
    relay = f"r-{uuid.uuid4()}"
    observer.execute("SELECT idem_create_relay(%s)", [relay])
    sent = idem.send(Effect(destination, {"n": 1}))
    assert idem.hand_over(relay, [destination]) == 1
    (message,) = idem.next(destination)
    assert (message.held.message_id, message.json()) == (str(sent), {"n": 1})
    observer.execute("SELECT idem_drop_relay(%s)", [relay])
