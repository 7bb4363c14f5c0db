"""The record of a response, which is one statement."""

from __future__ import annotations

import uuid

import psycopg
import pytest

from idem_pg import Claimed, Idem, IdemError
from idem_pg.http import statements
from idem_pg.http.fingerprint import journal_request
from idem_pg.http.identity import Identity
from idem_pg.http.recorded import Recorded

RECORDED = Recorded("00", 201, [("x-n", "1")], b"")
OTHER = Recorded("00", 201, [("x-n", "2")], b"")


@pytest.fixture
def identity() -> Identity:
    return Identity("all:k", f"http.tests.{uuid.uuid4()}", b"\0")


def test_failed_record_does_not_allow_the_commit(
    identity: Identity, observer: psycopg.Connection
) -> None:
    """Goal: also after ROLLBACK TO SAVEPOINT, no claim commits without its record."""
    with psycopg.connect() as connection:
        idem = Idem(connection)
        assert idem.run(statements.claim_and_forbid_commit(identity)) == Claimed()
        step = (identity.message_id, identity.destination, statements.STEP)
        idem.begin_call(*step, journal_request(identity.fingerprint))
        idem.finish_call(*step, RECORDED.to_json())
        connection.execute("SAVEPOINT s")
        with pytest.raises(IdemError) as failed:
            idem.run(statements.record(identity, OTHER))
        assert failed.value.sqlstate == "55000"
        connection.execute("ROLLBACK TO SAVEPOINT s")
        with pytest.raises(psycopg.Error) as rejected:
            connection.execute("COMMIT")
        assert rejected.value.sqlstate == "2D000"
        connection.rollback()
    assert not Idem(observer).is_claimed(identity.message_id, identity.destination)


def test_record_outside_of_its_transaction_has_no_effect(
    identity: Identity, observer: psycopg.Connection
) -> None:
    idem = Idem(observer)
    with pytest.raises(IdemError) as failed:
        idem.run(statements.record(identity, RECORDED))
    assert failed.value.sqlstate == "25P01"
    assert idem.calls(identity.message_id, identity.destination) == []


def test_record_allows_the_commit(identity: Identity, observer: psycopg.Connection) -> None:
    with psycopg.connect() as connection:
        idem = Idem(connection)
        idem.run(statements.claim_and_forbid_commit(identity))
        idem.run(statements.record(identity, RECORDED))
    found = Idem(observer).calls(identity.message_id, identity.destination)
    assert statements.recorded_in(found) == RECORDED
