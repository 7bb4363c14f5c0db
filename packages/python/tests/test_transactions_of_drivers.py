"""Claims and effects in the transaction of each driver and ORM."""

from __future__ import annotations

import datetime as dt
import traceback
import uuid
from typing import Any

import psycopg
import pytest
from connections import ASYNC, SYNC, in_transaction

from idem_pg import Claimed, Duplicate, Effect, IdemError, Mismatch
from idem_pg.statements import Statement

NAMES = [*SYNC, *ASYNC]
DESTINATION = "python.drivers"


def work_of(observer: psycopg.Connection, message_id: str) -> int:
    row = observer.execute("SELECT count(*) FROM work WHERE id = %s", [message_id]).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("name", NAMES)
def test_claim_and_work_commit_together(
    name: str, message_id: str, observer: psycopg.Connection
) -> None:
    def handle(idem: Any, execute: Any) -> Any:
        outcome = idem.claim(message_id, DESTINATION)
        if outcome == Claimed():
            execute(f"INSERT INTO work VALUES ('{message_id}')")
            assert work_of(observer, message_id) == 0
        return outcome

    assert in_transaction(name, handle) == Claimed()
    assert work_of(observer, message_id) == 1
    duplicate = in_transaction(name, handle)
    assert isinstance(duplicate, Duplicate)
    assert duplicate.handled_at is not None
    assert duplicate.handled_at.tzinfo is not None
    assert work_of(observer, message_id) == 1


@pytest.mark.parametrize("name", NAMES)
def test_rolled_back_claim_can_be_claimed_again(
    name: str, message_id: str, observer: psycopg.Connection
) -> None:
    def fail(idem: Any, execute: Any) -> None:
        assert idem.try_claim(message_id, DESTINATION)
        execute(f"INSERT INTO work VALUES ('{message_id}')")
        idem.record(message_id, DESTINATION, Effect("t", 1))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        in_transaction(name, fail)
    assert work_of(observer, message_id) == 0
    assert in_transaction(name, lambda idem, _: idem.effects(message_id, DESTINATION)) == []
    assert in_transaction(
        name,
        lambda idem, execute: (execute("SELECT 1"), idem.try_claim(message_id, DESTINATION))[1],
    )


@pytest.mark.parametrize("name", NAMES)
def test_duplicate_finds_the_recorded_effects(name: str, message_id: str) -> None:
    given = uuid.uuid4()
    tomorrow = dt.datetime.now(dt.timezone.utc) + dt.timedelta(days=1)
    effects = [
        Effect("orders", {"n": 1, "ä": None}, key="k", type="placed", headers={"h": [1]}),
        Effect("raw", b"\x00\xff", content_type="x/y", message_id=given, deliver_after=tomorrow),
    ]

    def record(idem: Any, _: Any) -> Any:
        assert idem.try_claim(message_id, DESTINATION)
        return idem.record(message_id, DESTINATION, effects)

    ids = in_transaction(name, record)
    first, second = in_transaction(name, lambda idem, _: idem.effects(message_id, DESTINATION))
    assert [first.message_id, second.message_id] == ids
    assert second.message_id == given
    assert (first.topic, first.key, first.type, first.ordinal) == ("orders", "k", "placed", 0)
    assert first.json() == {"n": 1, "ä": None}
    assert first.headers == {"h": [1]}
    assert first.content_type == "application/json"
    assert (second.payload, second.content_type, second.key) == (b"\x00\xff", "x/y", None)
    assert second.deliver_after == tomorrow
    assert first.recorded_at.tzinfo is not None


@pytest.mark.parametrize("name", NAMES)
def test_batch_is_in_the_order_of_its_ids(name: str, message_id: str) -> None:
    second, key = f"{message_id}-2", uuid.uuid4()

    def claim(idem: Any, _: Any) -> Any:
        return [
            idem.try_claim_batch([message_id, message_id, second], DESTINATION),
            idem.try_claim_batch([key, key], DESTINATION),
            idem.try_claim_batch([], DESTINATION),
        ]

    assert in_transaction(name, claim) == [[True, False, True], [True, False], []]
    assert in_transaction(name, claim) == [[False] * 3, [False] * 2, []]
    # A text that spells a UUID is that UUID.
    duplicate = in_transaction(name, lambda idem, _: idem.is_claimed(str(key), DESTINATION))
    assert duplicate is True


@pytest.mark.parametrize("name", NAMES)
def test_other_fingerprint_is_a_mismatch(name: str, message_id: str) -> None:
    def claim(fingerprint: bytes, **options: Any) -> Any:
        return in_transaction(
            name,
            lambda idem, execute: (
                execute("SELECT 1"),
                idem.claim(message_id, DESTINATION, fingerprint=fingerprint, **options),
            )[1],
        )

    now = dt.datetime.now(dt.timezone.utc)
    assert claim(b"a", wait=False, sent_at=now) == Claimed()
    assert isinstance(claim(b"a"), Duplicate)
    assert isinstance(claim(b"b"), Mismatch)


@pytest.mark.parametrize("name", NAMES)
def test_error_has_sqlstate_and_hint(name: str) -> None:
    with pytest.raises(IdemError) as caught:
        in_transaction(name, lambda idem, _: idem.try_claim("", DESTINATION))
    assert caught.value.sqlstate == "22023"
    assert caught.value.hint is not None
    assert "1" in caught.value.hint
    assert not caught.value.retryable
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("name", NAMES)
def test_errors_do_not_print_parameters(name: str, observer: psycopg.Connection) -> None:
    """Logs have the errors with their causes, and parameters are the data of users."""
    pid_of_session = Statement("SELECT pg_backend_pid()", (), lambda rows: rows[0][0])

    def fail(number: int) -> str:
        def work(idem: Any, _: Any) -> None:
            match number:
                case 0:
                    idem.record("private-id", DESTINATION, Effect("", "private payload"))
                case 1:
                    idem.try_claim("private\0id", DESTINATION)
                case 2:
                    pid = idem.run(pid_of_session)
                    observer.execute("SELECT pg_terminate_backend(%s, 60000)", [pid])
                    idem.try_claim("private-id", DESTINATION)

        try:
            in_transaction(name, work)
        except Exception as error:
            return "".join(traceback.format_exception(error, limit=0))
        pytest.fail("no error")

    for number in range(3):
        text = fail(number)
        assert "private" not in text, text


@pytest.mark.parametrize("name", NAMES)
def test_lost_connection_is_retryable(
    name: str, message_id: str, observer: psycopg.Connection
) -> None:
    pid_of_session = Statement("SELECT pg_backend_pid()", (), lambda rows: rows[0][0])
    caught: list[IdemError] = []

    def lose(idem: Any, _: Any) -> None:
        pid = idem.run(pid_of_session)
        observer.execute("SELECT pg_terminate_backend(%s, 60000)", [pid])
        with pytest.raises(IdemError) as lost:
            idem.try_claim(message_id, DESTINATION)
        caught.append(lost.value)
        raise lost.value

    with pytest.raises(Exception):  # noqa: B017, PT011
        in_transaction(name, lose)
    assert caught[0].retryable
    assert caught[0].is_connection_lost


@pytest.mark.parametrize("name", NAMES)
def test_send_records_an_effect_without_a_claim(name: str, observer: psycopg.Connection) -> None:
    topic, given = f"t-{uuid.uuid4()}", uuid.uuid4()

    def send(idem: Any, _: Any) -> Any:
        sent = idem.send(Effect(topic, {"n": 1}, key="k", type="t", headers={"a": 1}))
        return [sent, idem.send(Effect(topic, b"\x00", message_id=given, content_type="x/y"))]

    sent = in_transaction(name, send)
    assert sent[1] == given
    found = observer.execute(
        "SELECT message_id, key, type, content_type FROM idem.outbox_row WHERE topic = %s "
        "ORDER BY seq",
        [topic],
    ).fetchall()
    assert found == [(sent[0], "k", "t", "application/json"), (given, None, None, "x/y")]
