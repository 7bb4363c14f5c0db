"""The decorators `idempotent` and `once`."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import inspect
import json
import pickle
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from conftest import expire_leases
from psycopg_pool import ConnectionPool

from idem_pg import (
    CallRefusedError,
    Duplicate,
    Found,
    Idem,
    IdemError,
    Lease,
    OnUnknown,
    ToolBusyError,
    ToolFailedError,
    UnknownCall,
    UnknownResultError,
    async_once,
    idempotent,
    lease,
    once,
    tool_call_key,
)
from idem_pg.ids import scoped_id

SPEC = Path(__file__).parents[3] / "tests/spec"


@pytest.fixture
def destination(observer: psycopg.Connection) -> str:
    name = f"python.handlers.{uuid.uuid4()}"
    observer.execute("SELECT idem_configure_retries(%s, base => '0')", [name])
    return name


def test_idempotent_handler_runs_once(destination: str) -> None:
    runs: list[str] = []

    @idempotent(destination=destination, id=lambda payment: payment["id"])
    def handle(connection: psycopg.Connection, payment: dict[str, str]) -> str:
        runs.append(payment["id"])
        return "paid"

    results = []
    for message_id in ["a", "a", "b"]:
        with psycopg.connect() as connection:
            results.append(handle(connection, {"id": message_id}))
    assert results == ["paid", Duplicate(), "paid"]
    assert runs == ["a", "b"]


def test_failed_handler_can_run_again(destination: str) -> None:
    @idempotent(destination=destination, id=lambda message_id: message_id)
    def handle(connection: psycopg.Connection, message_id: str) -> None:
        raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError), psycopg.connect() as connection:
            handle(connection, "a")


def test_idempotent_coroutine_runs_once(destination: str) -> None:
    @idempotent(destination=destination, id=lambda message_id: message_id)
    async def handle(connection: psycopg.AsyncConnection, message_id: str) -> str:
        cursor = await connection.execute("SELECT %s::text", [message_id])
        return str(await cursor.fetchone())

    async def main() -> list[str | Duplicate]:
        results = []
        for _ in range(2):
            async with await psycopg.AsyncConnection.connect() as connection:
                results.append(await handle(connection, "a"))
        return results

    assert asyncio.run(main()) == ["('a',)", Duplicate()]


class Card:
    """A tool with an external system. `errors` are raised by the next requests."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.requests: list[tuple[int, str]] = []

    def charge(self, cents: int, key: str) -> dict[str, int]:
        self.requests.append((cents, key))
        if self.errors:
            raise self.errors.pop(0)
        return {"charged": cents}


def tool(pool: ConnectionPool, destination: str, card: Card, on_unknown: Any) -> Any:
    options: Any = {"scope": None, "id": "call_id", "key": "key", "ignore": ["context"]}

    @once(pool, destination, on_unknown=on_unknown, **options)
    def charge(cents: int, *, call_id: str, key: str = "", context: object = None) -> Any:
        """Charges the card."""
        return card.charge(cents, key)

    return charge


def test_repeated_tool_call_returns_the_recorded_result(
    pool: ConnectionPool, destination: str
) -> None:
    card = Card()
    charge = tool(pool, destination, card, OnUnknown.FAIL)
    assert charge.__doc__ == "Charges the card."
    for _ in range(3):
        assert charge(5, call_id="call-1", context=object()) == {"charged": 5}
    assert charge(5, call_id="call-2") == {"charged": 5}
    assert [cents for cents, _ in card.requests] == [5, 5]
    assert card.requests[0][1] != card.requests[1][1]
    with pytest.raises(ToolFailedError, match="with other arguments"):
        charge(6, call_id="call-1")
    assert len(card.requests) == 2


def test_tool_call_needs_its_id(pool: ConnectionPool, destination: str) -> None:
    charge = tool(pool, destination, Card(), OnUnknown.FAIL)
    with pytest.raises(TypeError, match="needs its id as the argument 'call_id'"):
        charge(5)
    with pytest.raises(TypeError, match="unexpected keyword argument 'key'"):
        charge(5, call_id="call-1", key="mine")
    assert list(inspect.signature(charge).parameters) == ["cents", "call_id", "context"]
    with pytest.raises(TypeError, match="has no parameter 'id'"):
        once(pool, destination, scope=None, id="id", on_unknown=OnUnknown.FAIL)(lambda: None)


def test_concurrent_tool_call_is_busy(pool: ConnectionPool, destination: str) -> None:
    held = lease(pool, "all:call-1", destination)
    assert isinstance(held, Lease)
    card = Card()
    with pytest.raises(ToolBusyError) as busy:
        tool(pool, destination, card, OnUnknown.REPEAT)(5, call_id="call-1")
    assert busy.value.retry_after is not None
    assert card.requests == []


def test_rejected_tool_call_is_rejected_again(pool: ConnectionPool, destination: str) -> None:
    card = Card(CallRefusedError("no such card"))
    charge = tool(pool, destination, card, OnUnknown.REPEAT)
    for _ in range(3):
        with pytest.raises(CallRefusedError, match="no such card"):
            charge(5, call_id="call-1")
    assert len(card.requests) == 1


def scoped(pool: ConnectionPool, destination: str, card: Card) -> Any:
    @once(
        pool,
        destination,
        scope="conversation",
        id="call_id",
        key="key",
        on_unknown=OnUnknown.FAIL,
    )
    def charge(cents: int, *, conversation: Any, call_id: Any, key: str = "") -> Any:
        return card.charge(cents, key)

    return charge


def test_calls_of_two_conversations_are_different(
    pool: ConnectionPool, destination: str, observer: psycopg.Connection
) -> None:
    card = Card()
    charge = scoped(pool, destination, card)
    for conversation, call in [("a", "b:c"), ("a", "b:c"), ("a:b", "c")]:
        assert charge(5, conversation=conversation, call_id=call) == {"charged": 5}
    assert len({key for _, key in card.requests}) == len(card.requests) == 2
    rows = observer.execute("SELECT id FROM idem.inbox WHERE destination = %s", [destination])
    assert sorted(rows.fetchall()) == [("by:1:a:b:c",), ("by:3:a:b:c",)]


def test_message_ids_are_those_of_http() -> None:
    cases = json.loads((SPEC / "http/ids.json").read_text())
    for case in cases["single_tenant"]:
        assert scoped_id(None, case["key"]) == case["id"]
    for case in cases["by_caller"]:
        if "id" in case:
            assert scoped_id(case["caller"], case["key"]) == case["id"]
        elif case["problem"] == "unknown-caller" and case["caller"] is not None:
            with pytest.raises(ValueError, match="a scope is"):
                scoped_id(case["caller"], case["key"])


def test_tool_call_needs_its_scope(pool: ConnectionPool, destination: str) -> None:
    card = Card()
    charge = scoped(pool, destination, card)
    with pytest.raises(TypeError, match="needs its scope as the argument 'conversation'"):
        charge(5, conversation=None, call_id="call-1")
    with pytest.raises(ValueError, match="a scope is"):
        charge(5, conversation="", call_id="call-1")
    with pytest.raises(TypeError, match="scope"):
        once(pool, destination, id="call_id", on_unknown=OnUnknown.FAIL)  # type: ignore[call-arg]
    assert card.requests == []


def test_key_of_a_tool_call_is_that_of_node() -> None:
    cases = json.loads((SPEC / "tools/keys.json").read_text())
    assert len(cases) >= 8
    for case in cases:
        key = tool_call_key(case["tool"], case["arguments"], case["occurrence"])
        assert key == case["key"], case


def test_key_of_a_tool_call_does_not_depend_on_the_writing() -> None:
    key = tool_call_key("refund", {"a": 1, "b": [1.0, {"c": 2, "d": "\ue000"}]}, 0)
    assert key == tool_call_key("refund", {"b": [1, {"d": "\ue000", "c": 2.0}], "a": 1}, 0)
    others: list[Any] = [
        ("refund", {"a": 1}, 0),
        ("refund", {"a": 1}, 1),
        ("refund", {"a": "1"}, 0),
    ]
    others += [("refunds", {"a": 1}, 0), ("refund", {"a": True}, 0), ("refund", {"a": 1.5}, 0)]
    assert len({tool_call_key(*other) for other in others}) == 6
    for wrong in [{"a": float("nan")}, {"a": "\ud800"}, {"a": object()}, {1: 2}]:
        with pytest.raises((TypeError, ValueError)):
            tool_call_key("refund", wrong, 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="occurrence"):
        tool_call_key("refund", {}, -1)


@pytest.mark.parametrize("value", [dt.datetime(2030, 1, 1), float("nan"), "a\0b", "\ud83e"])
def test_tool_call_is_made_once_whatever_it_returns(
    value: Any, pool: ConnectionPool, destination: str
) -> None:
    runs: list[str] = []

    @once(pool, destination, scope=None, id="call_id", on_unknown=OnUnknown.REPEAT)
    def charge(*, call_id: str) -> Any:
        runs.append(call_id)
        return value

    results: list[Any] = []
    for _ in range(3):
        try:
            results.append(charge(call_id="call-1"))
        except CallRefusedError as error:
            results.append(str(error))
    assert len(runs) == 1
    assert results[0] == results[1] == results[2]
    assert results[0] == value or "its result cannot be stored" in results[0]


def test_unknown_tool_call_waits_for_a_person(
    pool: ConnectionPool, destination: str, observer: psycopg.Connection
) -> None:
    card = Card(TimeoutError("no reply"))
    charge = tool(pool, destination, card, OnUnknown.FAIL)
    with pytest.raises(TimeoutError):
        charge(5, call_id="call-1")
    # More often than a message has attempts.
    for _ in range(12):
        with pytest.raises(UnknownResultError):
            charge(5, call_id="call-1")
    Idem(observer).finish_call("all:call-1", destination, "tool", {"charged": 5})
    assert charge(5, call_id="call-1") == {"charged": 5}
    assert len(card.requests) == 1


def test_unknown_tool_call_is_looked_up(pool: ConnectionPool, destination: str) -> None:
    card = Card(TimeoutError("no reply"))
    charge = tool(pool, destination, card, lambda call: Found(call.idempotency_key))
    with pytest.raises(TimeoutError):
        charge(5, call_id="call-1")
    assert charge(5, call_id="call-1") == card.requests[0][1]
    assert len(card.requests) == 1


def test_failing_tool_call_has_a_last_attempt(
    pool: ConnectionPool, destination: str, observer: psycopg.Connection
) -> None:
    observer.execute(
        "SELECT idem_configure_retries(%s, max_attempts => 2, base => '0')", [destination]
    )
    card = Card(*[TimeoutError()] * 5)
    charge = tool(pool, destination, card, OnUnknown.REPEAT)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            charge(5, call_id="call-1")
    for _ in range(2):
        with pytest.raises(ToolFailedError, match="no attempt left"):
            charge(5, call_id="call-1")
    assert len(card.requests) == 2


def test_call_whose_result_is_not_recorded_counts_as_an_attempt(
    destination: str, observer: psycopg.Connection
) -> None:
    observer.execute(
        "SELECT idem_configure_retries(%s, max_attempts => 2, base => '0')", [destination]
    )
    runs: list[str] = []
    is_read_only = False

    @contextlib.contextmanager
    def source() -> Iterator[psycopg.Connection]:
        nonlocal is_read_only
        with psycopg.connect() as connection:
            if is_read_only:
                is_read_only = False
                connection.execute("SET TRANSACTION READ ONLY")
            yield connection

    @once(source, destination, scope=None, id="call_id", on_unknown=OnUnknown.REPEAT)
    def charge(*, call_id: str) -> int:
        nonlocal is_read_only
        is_read_only = True
        runs.append(call_id)
        return 1

    for _ in range(2):
        with pytest.raises(IdemError, match="read-only transaction"):
            charge(call_id="call-1")
    with pytest.raises(ToolFailedError, match="no attempt left"):
        charge(call_id="call-1")
    assert len(runs) == 2


@pytest.mark.parametrize("is_refused", [False, True])
def test_result_of_the_last_attempt_is_returned(
    is_refused: bool, pool: ConnectionPool, destination: str, observer: psycopg.Connection
) -> None:
    """The last attempt has recorded its result, and has died before it completed the message."""
    observer.execute(
        "SELECT idem_configure_retries(%s, max_attempts => 1, base => '0')", [destination]
    )
    card = Card(*[CallRefusedError("no such card")][: int(is_refused)])
    charge = tool(pool, destination, card, OnUnknown.REPEAT)
    held = lease(pool, "all:call-1", destination)
    assert isinstance(held, Lease)
    with contextlib.suppress(CallRefusedError):
        held.once("tool", {"cents": 5}, lambda key: card.charge(5, key), on_unknown=OnUnknown.FAIL)
    expire_leases(observer, destination)
    with pytest.raises(ToolFailedError, match="with other arguments"):
        charge(6, call_id="call-1")
    for _ in range(2):
        if is_refused:
            with pytest.raises(CallRefusedError, match="no such card"):
                charge(5, call_id="call-1")
        else:
            assert charge(5, call_id="call-1") == {"charged": 5}
    assert Idem(observer).is_claimed("all:call-1", destination)
    assert len(card.requests) == 1


def test_asynchronous_tool_runs_once(destination: str) -> None:
    runs: list[int] = []

    async def main() -> None:
        async with asyncpg.create_pool(min_size=1, max_size=2) as pool:

            @async_once(pool, destination, scope=None, id="call_id", on_unknown=OnUnknown.FAIL)
            async def charge(cents: int, *, call_id: str) -> dict[str, int]:
                runs.append(cents)
                return {"charged": cents}

            for _ in range(2):
                assert await charge(5, call_id="call-1") == {"charged": 5}

    asyncio.run(main())
    assert runs == [5]


def test_claimed_call_without_a_result_has_failed(
    pool: ConnectionPool, destination: str, observer: psycopg.Connection
) -> None:
    observer.execute("SELECT idem_try_record('all:call-1', %s, '[]')", [destination])
    card = Card()
    for _ in range(2):
        with pytest.raises(ToolFailedError, match="its result is not recorded"):
            tool(pool, destination, card, OnUnknown.REPEAT)(5, call_id="call-1")
    assert card.requests == []
    assert Idem(observer).calls("all:call-1", destination) == []


def test_missing_argument_does_not_use_up_the_id(pool: ConnectionPool, destination: str) -> None:
    charge = tool(pool, destination, Card(), OnUnknown.FAIL)
    with pytest.raises(TypeError, match="missing a required argument: 'cents'"):
        charge(call_id="call-1")
    assert charge(5, call_id="call-1") == {"charged": 5}


def test_error_of_the_tool_counts_as_an_attempt(
    pool: ConnectionPool, destination: str, observer: psycopg.Connection
) -> None:
    observer.execute(
        "SELECT idem_configure_retries(%s, max_attempts => 1, base => '0')", [destination]
    )
    card = Card(IdemError("of the tool itself", "23000", None))
    charge = tool(pool, destination, card, OnUnknown.REPEAT)
    with pytest.raises(IdemError, match="of the tool itself"):
        charge(5, call_id="call-1")
    with pytest.raises(ToolFailedError, match="no attempt left"):
        charge(5, call_id="call-1")


def test_function_of_the_wrong_kind_is_rejected(pool: ConnectionPool, destination: str) -> None:
    async def coroutine(call_id: str) -> None: ...

    def plain(call_id: str, key: str = "") -> None: ...

    def generator(connection: Any) -> Any:
        yield

    options: Any = {"scope": None, "id": "call_id", "on_unknown": OnUnknown.FAIL}
    with pytest.raises(TypeError, match="async_once"):
        once(pool, destination, **options)(coroutine)
    with pytest.raises(TypeError, match="async_once"):
        async_once(pool_function, destination, **options)(plain)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not keyword-only"):
        once(pool, destination, key="key", **options)(plain)
    with pytest.raises(TypeError, match="generator"):
        idempotent(destination=destination, id=str)(generator)


def pool_function() -> Any:
    raise AssertionError("no connection is needed")


@pytest.mark.parametrize(
    "error",
    [
        IdemError("text", "22023", "hint"),
        ToolBusyError("call-1", None),
        UnknownResultError("charge", UnknownCall("key", 1, None)),
    ],
)
def test_errors_can_be_sent_to_another_process(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
