"""External calls that are made once."""

from __future__ import annotations

import contextlib
import datetime as dt
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from idem_pg import (
    CallNotDoneError,
    CallRefusedError,
    Found,
    Held,
    Idem,
    IdemError,
    Lease,
    LeaseLostError,
    OnUnknown,
    UnknownCall,
    UnknownResultError,
    lease,
)


class Uncertain(Exception):
    """The reply of the external system was lost."""


class Gateway:
    """An external system. `errors` are raised by the next requests."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.keys: list[str] = []

    def charge(self, key: str) -> Any:
        self.keys.append(key)
        if self.errors:
            raise self.errors.pop(0)
        return {"receipt": len(self.keys)}


@pytest.fixture
def destination(observer: psycopg.Connection) -> str:
    name = f"python.once.{uuid.uuid4()}"
    observer.execute("SELECT idem_configure_retries(%s, base => '0')", [name])
    return name


def attempt(pool: ConnectionPool, destination: str, gateway: Gateway, on_unknown: Any) -> Any:
    work = lease(pool, "m", destination)
    assert isinstance(work, Lease), work
    with work:
        return work.once("charge", {"cents": 5}, gateway.charge, on_unknown=on_unknown)


def test_recorded_result_is_returned_without_a_call(pool: ConnectionPool, destination: str) -> None:
    gateway = Gateway()
    work = lease(pool, "m", destination)
    assert isinstance(work, Lease)
    with work:
        for _ in range(3):
            result = work.once("charge", 1, gateway.charge, on_unknown=OnUnknown.FAIL)
            assert result == {"receipt": 1}
        assert len(gateway.keys) == 1
        with pytest.raises(IdemError) as other:
            work.once("charge", 2, gateway.charge, on_unknown=OnUnknown.FAIL)
        assert other.value.sqlstate == "23000"
    assert len(gateway.keys) == 1


def test_every_attempt_returns_the_same_response(pool: ConnectionPool, destination: str) -> None:
    work = lease(pool, "m", destination)
    assert isinstance(work, Lease)
    with work:
        for _ in range(2):
            result = work.once("s", 1, lambda _: {1: (1, 2)}, on_unknown=OnUnknown.FAIL)
            assert result == {"1": [1, 2]}


def test_unknown_call_is_repeated_with_the_same_key(pool: ConnectionPool, destination: str) -> None:
    gateway = Gateway(Uncertain())
    with pytest.raises(Uncertain):
        attempt(pool, destination, gateway, OnUnknown.REPEAT)
    assert attempt(pool, destination, gateway, OnUnknown.REPEAT) == {"receipt": 2}
    assert gateway.keys[0] == gateway.keys[1]


def test_unknown_call_is_not_repeated_with_fail(
    pool: ConnectionPool, destination: str, observer: psycopg.Connection
) -> None:
    gateway = Gateway(Uncertain())
    with pytest.raises(Uncertain):
        attempt(pool, destination, gateway, OnUnknown.FAIL)
    with pytest.raises(UnknownResultError) as unknown:
        attempt(pool, destination, gateway, OnUnknown.FAIL)
    assert (unknown.value.step, unknown.value.call.attempt) == ("charge", 2)
    assert unknown.value.call.begun_at is not None
    assert len(gateway.keys) == 1
    assert [call.state for call in Idem(observer).calls("m", destination)] == ["unknown"]


def test_unknown_call_is_looked_up(pool: ConnectionPool, destination: str) -> None:
    gateway = Gateway(Uncertain())
    with pytest.raises(Uncertain):
        attempt(pool, destination, gateway, OnUnknown.FAIL)
    found = attempt(pool, destination, gateway, lambda call: Found(call.idempotency_key))
    assert found == gateway.keys[0]
    assert len(gateway.keys) == 1


def test_call_that_is_not_found_is_made(pool: ConnectionPool, destination: str) -> None:
    gateway = Gateway(Uncertain())
    with pytest.raises(Uncertain):
        attempt(pool, destination, gateway, OnUnknown.FAIL)
    assert attempt(pool, destination, gateway, lambda _: None) == {"receipt": 2}


def test_call_without_effect_is_made_again(pool: ConnectionPool, destination: str) -> None:
    gateway = Gateway(CallNotDoneError("not connected"))
    with pytest.raises(CallNotDoneError):
        attempt(pool, destination, gateway, OnUnknown.FAIL)
    assert attempt(pool, destination, gateway, OnUnknown.FAIL) == {"receipt": 2}


def test_rejected_call_is_never_repeated(
    pool: ConnectionPool, destination: str, observer: psycopg.Connection
) -> None:
    gateway = Gateway(CallRefusedError("no such card"))
    work = lease(pool, "m", destination)
    assert isinstance(work, Lease)
    with work:
        for _ in range(2):
            with pytest.raises(CallRefusedError, match="no such card"):
                work.once("charge", 1, gateway.charge, on_unknown=OnUnknown.REPEAT)
    assert len(gateway.keys) == 1
    (call,) = Idem(observer).calls("m", destination)
    assert (call.state, call.error) == ("failed", "no such card")


def test_process_without_the_lease_makes_no_call(
    pool: ConnectionPool, destination: str, observer: psycopg.Connection
) -> None:
    gateway = Gateway()
    work = lease(pool, "m", destination)
    assert isinstance(work, Lease)
    with pytest.raises(LeaseLostError), work:
        Idem(observer).release(work.held)
        work.once("charge", 1, gateway.charge, on_unknown=OnUnknown.REPEAT)
    assert gateway.keys == []


def test_long_rejection_is_recorded(
    pool: ConnectionPool, destination: str, observer: psycopg.Connection
) -> None:
    gateway = Gateway(CallRefusedError("x" * 9000 + "\0"))
    work = lease(pool, "m", destination)
    assert isinstance(work, Lease)
    with work, pytest.raises(CallRefusedError):
        work.once("charge", 1, gateway.charge, on_unknown=OnUnknown.REPEAT)
    (call,) = Idem(observer).calls("m", destination)
    assert (call.state, call.error) == ("failed", "x" * 2000)


def test_result_after_a_lost_lease_belongs_to_the_other_process(
    pool: ConnectionPool, destination: str, observer: psycopg.Connection
) -> None:
    idem = Idem(observer)
    work = lease(pool, "m", destination)
    assert isinstance(work, Lease)

    def refuse(_: str) -> Any:
        idem.release(work.held)
        other = idem.acquire("m", destination)
        assert isinstance(other, Held)
        idem.begin_call("m", destination, "charge", 1, token=other.token)
        raise CallRefusedError("no such card")

    with pytest.raises(LeaseLostError), work:
        work.once("charge", 1, refuse, on_unknown=OnUnknown.REPEAT)
    idem.finish_call("m", destination, "charge", {"receipt": 1})


def cyclic() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


NOT_STORED = "the call was made, and its result cannot be stored: "


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (dt.datetime(2030, 1, 1), "datetime is not JSON serializable"),
        (float("nan"), "not JSON compliant"),
        (cyclic(), "Circular reference"),
        ({(1, 2): 3}, "keys must be"),
        (10**5000, "Exceeds the limit"),
    ],
    ids=["datetime", "nan", "cycle", "key", "integer"],
)
def test_call_whose_result_is_no_json_is_never_repeated(
    value: Any, why: str, pool: ConnectionPool, destination: str, observer: psycopg.Connection
) -> None:
    keys: list[str] = []

    def call(key: str) -> Any:
        keys.append(key)
        return value

    work = lease(pool, "m", destination)
    assert isinstance(work, Lease)
    with work:
        for _ in range(3):
            with pytest.raises(CallRefusedError, match=NOT_STORED) as refused:
                work.once("charge", 1, call, on_unknown=OnUnknown.REPEAT)
            assert why in str(refused.value)
    assert len(keys) == 1
    (recorded,) = Idem(observer).calls("m", destination)
    assert (recorded.state, recorded.error) == ("failed", str(refused.value))


class Rejecting:
    """A source whose next transaction the server rejects with `sqlstate`."""

    sqlstate: str | None = None

    @contextlib.contextmanager
    def __call__(self) -> Iterator[psycopg.Connection]:
        with psycopg.connect() as connection:
            sqlstate, self.sqlstate = self.sqlstate, None
            if sqlstate == "25006":
                connection.execute("SET TRANSACTION READ ONLY")
            elif sqlstate is not None:
                connection.execute(
                    "DO LANGUAGE plpgsql $$ BEGIN RAISE EXCEPTION 'rejected' "
                    f"USING ERRCODE = '{sqlstate}'; END $$".encode()
                )
            yield connection


def calls_of(source: Rejecting, gateway: Gateway, sqlstate: str) -> Any:
    """Returns a call whose result the server rejects."""

    def call(key: str) -> Any:
        source.sqlstate = sqlstate
        return gateway.charge(key)

    return call


@pytest.mark.parametrize("sqlstate", ["42501", "22P05", "23514", "54000", "XX000", "0A000"])
def test_call_whose_result_the_server_rejects_is_never_repeated(
    sqlstate: str, destination: str, observer: psycopg.Connection
) -> None:
    source, gateway = Rejecting(), Gateway()
    call = calls_of(source, gateway, sqlstate)
    work = lease(source, "m", destination)
    assert isinstance(work, Lease)
    with work:
        for _ in range(2):
            with pytest.raises(CallRefusedError, match=f"{NOT_STORED}rejected"):
                work.once("charge", 1, call, on_unknown=OnUnknown.REPEAT)
    assert len(gateway.keys) == 1
    (recorded,) = Idem(observer).calls("m", destination)
    assert recorded.state == "failed"


@pytest.mark.parametrize("sqlstate", ["25006", "57014", "57P04", "53100", "58030"])
def test_error_of_the_environment_leaves_the_call_unknown(
    sqlstate: str, destination: str, observer: psycopg.Connection
) -> None:
    source, gateway = Rejecting(), Gateway()
    call = calls_of(source, gateway, sqlstate)
    work = lease(source, "m", destination)
    assert isinstance(work, Lease)
    with pytest.raises(IdemError) as failed, work:
        work.once("charge", 1, call, on_unknown=OnUnknown.FAIL)
    assert failed.value.sqlstate == sqlstate
    (recorded,) = Idem(observer).calls("m", destination)
    assert recorded.state == "unknown"
    again = lease(source, "m", destination)
    assert isinstance(again, Lease)
    assert again.held.attempt == 2
    with again, pytest.raises(UnknownResultError):
        again.once("charge", 1, call, on_unknown=OnUnknown.FAIL)
    assert len(gateway.keys) == 1


def test_result_that_is_no_json_is_recorded_without_the_lease(
    pool: ConnectionPool, destination: str, observer: psycopg.Connection
) -> None:
    work = lease(pool, "m", destination)
    assert isinstance(work, Lease)

    def call(_: str) -> Any:
        Idem(observer).release(work.held)
        return object()

    with pytest.raises(CallRefusedError, match=NOT_STORED), work:
        work.once("charge", 1, call, on_unknown=OnUnknown.REPEAT)
    (recorded,) = Idem(observer).calls("m", destination)
    assert recorded.state == "failed"


def test_found_result_that_is_no_json_is_recorded_as_refused(
    pool: ConnectionPool, destination: str, observer: psycopg.Connection
) -> None:
    gateway = Gateway(Uncertain())
    with pytest.raises(Uncertain):
        attempt(pool, destination, gateway, OnUnknown.FAIL)
    with pytest.raises(CallRefusedError, match=NOT_STORED):
        attempt(pool, destination, gateway, lambda _: Found(object()))
    (recorded,) = Idem(observer).calls("m", destination)
    assert recorded.state == "failed"
    assert len(gateway.keys) == 1


def test_query_can_find_that_the_call_was_refused(
    pool: ConnectionPool, destination: str, observer: psycopg.Connection
) -> None:
    def look(_: UnknownCall) -> Found | None:
        raise CallRefusedError("no such card")

    gateway = Gateway(Uncertain())
    with pytest.raises(Uncertain):
        attempt(pool, destination, gateway, look)
    with pytest.raises(CallRefusedError, match="no such card"):
        attempt(pool, destination, gateway, look)
    (recorded,) = Idem(observer).calls("m", destination)
    assert (recorded.state, recorded.error) == ("failed", "no such card")
    assert len(gateway.keys) == 1
