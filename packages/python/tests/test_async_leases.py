"""Leases and external calls with asyncio. The flow is that of `lease.py`, which is tested apart."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from conftest import until
from psycopg_pool import AsyncConnectionPool
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from test_leases import SHORT, expiry_of, renewed_soon, steal

from idem_pg import (
    AsyncLease,
    CallRefusedError,
    Duplicate,
    Effect,
    Found,
    Idem,
    InProgress,
    LeaseLostError,
    OnUnknown,
    async_lease,
)


@pytest.fixture
def destination(observer: psycopg.Connection) -> str:
    name = f"python.async-leases.{uuid.uuid4()}"
    observer.execute("SELECT idem_configure_retries(%s, base => '0')", [name])
    return name


@contextlib.asynccontextmanager
async def psycopg_pool() -> AsyncIterator[Any]:
    async with AsyncConnectionPool(min_size=0, max_size=4, open=False) as pool:
        yield pool


@contextlib.asynccontextmanager
async def engine() -> AsyncIterator[Any]:
    engine = create_async_engine("postgresql+asyncpg://", poolclass=sqlalchemy.NullPool)
    yield engine
    await engine.dispose()


@contextlib.asynccontextmanager
async def sessions() -> AsyncIterator[Any]:
    async with engine() as found:
        yield async_sessionmaker(found)


@contextlib.asynccontextmanager
async def function() -> AsyncIterator[Any]:
    @contextlib.asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect() as connection:
            yield connection

    yield opened


def asyncpg_pool() -> Any:
    return asyncpg.create_pool(min_size=1, max_size=4)


SOURCES = [asyncpg_pool, psycopg_pool, engine, sessions, function]


def run(source: Any, work: Callable[[Any], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with source() as opened:
            return await asyncio.wait_for(work(opened), 60)

    return asyncio.run(main())


async def leased(
    source: Any, destination: str, duration: dt.timedelta = dt.timedelta(minutes=1)
) -> AsyncLease:
    found = await async_lease(source, "m", destination, duration)
    assert isinstance(found, AsyncLease), found
    return AsyncLease(source, renewed_soon(found.held)) if duration == SHORT else found


@pytest.mark.parametrize("source", SOURCES)
def test_end_of_the_block_completes_the_message(
    source: Any, destination: str, observer: psycopg.Connection
) -> None:
    async def work(opened: Any) -> None:
        async with await leased(opened, destination, SHORT) as lease:
            expiry = expiry_of(observer, destination)
            while expiry_of(observer, destination) == expiry:
                await asyncio.sleep(0.01)
            assert isinstance(await async_lease(opened, "m", destination), InProgress)
            result = await lease.once("s", 1, charge, on_unknown=OnUnknown.FAIL)
            lease.record(Effect("t", result))
        assert await async_lease(opened, "m", destination) == Duplicate()

    async def charge(key: str) -> Any:
        return {"key": key}

    run(source, work)
    (effect,) = Idem(observer).effects("m", destination)
    (call,) = Idem(observer).calls("m", destination)
    assert effect.json() == call.response


@pytest.mark.parametrize("source", SOURCES)
def test_lease_is_acknowledged_only_after_its_completion(source: Any, destination: str) -> None:
    async def work(opened: Any) -> None:
        async with await leased(opened, destination) as lease:
            lease.give_back()
        assert lease.settlement == "redeliver"
        lease = await leased(opened, destination)
        with contextlib.suppress(LookupError):
            async with lease:
                raise LookupError
        assert lease.settlement == "redeliver"
        async with await leased(opened, destination) as lease:
            before = lease.settlement
        assert (before, lease.settlement) == ("redeliver", "acknowledge")

    run(source, work)


def isolated_pool() -> Any:
    settings = {"default_transaction_isolation": "serializable"}
    return asyncpg.create_pool(min_size=1, max_size=4, server_settings=settings)


@contextlib.asynccontextmanager
async def isolated_engine() -> AsyncIterator[Any]:
    engine = create_async_engine(
        "postgresql+psycopg://", poolclass=sqlalchemy.NullPool, isolation_level="REPEATABLE READ"
    )
    yield engine
    await engine.dispose()


@pytest.mark.parametrize("source", [isolated_pool, isolated_engine])
def test_lease_of_isolated_transactions_is_renewed_and_released(
    source: Any, destination: str, observer: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(opened: Any) -> None:
        with pytest.raises(ValueError, match="broken"):
            async with await leased(opened, destination, SHORT):
                expiry = expiry_of(observer, destination)
                while expiry_of(observer, destination) == expiry and not caplog.records:
                    await asyncio.sleep(0.01)
                raise ValueError("broken")
        again = await leased(opened, destination)
        assert (again.held.attempt, again.held.last_error) == (2, "ValueError: broken")

    run(source, work)
    assert caplog.records == []


def test_lease_is_lost_when_its_extension_hangs(
    destination: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(opened: Any) -> None:
        lease = await leased(opened, destination, dt.timedelta(milliseconds=300))
        with pytest.raises(LeaseLostError):
            async with lease:
                # The event loop is blocked, so the renewal does not run.
                until("the lease is lost", lambda: lease.is_lost)
                await asyncio.sleep(0)
                await asyncio.Event().wait()

    run(psycopg_pool, work)
    assert "cannot renew the lease of message 'm'" in caplog.text


@pytest.mark.parametrize("source", [asyncpg_pool, psycopg_pool])
def test_lost_lease_cancels_the_work(
    source: Any, destination: str, observer: psycopg.Connection
) -> None:
    async def work(opened: Any) -> None:
        lease = await leased(opened, destination, SHORT)
        with pytest.raises(LeaseLostError):
            async with lease:
                steal(observer, lease.held, destination)
                await asyncio.Event().wait()
        assert lease.is_lost
        # The cancellation has ended: the task can wait again.
        await asyncio.sleep(0)

    run(source, work)
    assert not Idem(observer).is_claimed("m", destination)


def test_renewal_survives_a_server_that_is_not_available(
    destination: str, observer: psycopg.Connection
) -> None:
    failed: list[Exception] = []

    async def work(opened: Any) -> None:
        @contextlib.asynccontextmanager
        async def source() -> AsyncIterator[Any]:
            if expiries and len(failed) < 3:
                try:
                    await asyncpg.connect(host="127.0.0.1", port=1)
                except OSError as error:
                    failed.append(error)
                    raise
            async with opened.acquire() as connection, connection.transaction():
                yield connection

        expiries: list[float] = []
        async with await leased(source, destination, dt.timedelta(seconds=3)) as lease:
            expiries.append(expiry_of(observer, destination))
            while expiry_of(observer, destination) == expiries[0]:
                await asyncio.sleep(0.01)
            assert len(failed) == 3
            assert not lease.is_lost

    run(asyncpg_pool, work)


def test_lease_is_acquired_when_the_server_is_available_again(destination: str) -> None:
    ports = ["1", "1"]

    async def work(opened: Any) -> None:
        @contextlib.asynccontextmanager
        async def source() -> AsyncIterator[Any]:
            if ports:
                await asyncpg.connect(host="127.0.0.1", port=ports.pop())
            async with opened.acquire() as connection, connection.transaction():
                yield connection

        assert (await leased(source, destination)).held.attempt == 1
        assert ports == []

    run(asyncpg_pool, work)


def test_cancellation_is_not_hidden_by_a_lost_lease(
    destination: str, observer: psycopg.Connection
) -> None:
    # Python 3.10 does not count the cancellations of a task.
    expected = asyncio.CancelledError if hasattr(asyncio.Task, "uncancel") else LeaseLostError

    async def work(opened: Any) -> None:
        async def attempt() -> None:
            async with await leased(opened, destination, SHORT) as lease:
                steal(observer, lease.held, destination)
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    task.cancel()
                    raise

        task = asyncio.create_task(attempt())
        with pytest.raises(expected):
            await task

    run(asyncpg_pool, work)


def test_cancelled_work_is_not_counted(destination: str) -> None:
    async def work(opened: Any) -> None:
        started = asyncio.Event()

        async def attempt() -> None:
            async with await leased(opened, destination):
                started.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(attempt())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await leased(opened, destination)).held.attempt == 1

    run(asyncpg_pool, work)


def test_unknown_call_is_looked_up(destination: str) -> None:
    keys: list[str] = []

    async def fail(key: str) -> Any:
        keys.append(key)
        raise TimeoutError

    async def look(call: Any) -> Found:
        return Found({"found": call.idempotency_key})

    async def work(opened: Any) -> None:
        with pytest.raises(TimeoutError):
            async with await leased(opened, destination) as lease:
                await lease.once("s", 1, fail, on_unknown=look)
        async with await leased(opened, destination) as lease:
            found = await lease.once("s", 1, fail, on_unknown=look)
        assert found == {"found": keys[0]}
        assert len(keys) == 1

    run(asyncpg_pool, work)


def test_rejection_is_recorded(destination: str, observer: psycopg.Connection) -> None:
    async def refuse(_: str) -> Any:
        raise CallRefusedError("no such card")

    async def work(opened: Any) -> None:
        async with await leased(opened, destination) as lease:
            for _ in range(2):
                with pytest.raises(CallRefusedError, match="no such card"):
                    await lease.once("s", 1, refuse, on_unknown=OnUnknown.REPEAT)

    run(asyncpg_pool, work)
    (call,) = Idem(observer).calls("m", destination)
    assert call.error == "no such card"


def test_message_is_completed_with_the_writes_of_the_user(
    destination: str, observer: psycopg.Connection
) -> None:
    async def work(opened: Any) -> Any:
        async with await leased(opened, destination) as lease:
            async with opened.acquire() as connection, connection.transaction():
                return await lease.complete(connection, Effect("t", 1))

    ids = run(asyncpg_pool, work)
    assert [effect.message_id for effect in Idem(observer).effects("m", destination)] == ids


def test_lost_connection_is_repeated_by_every_step(
    destination: str, observer: psycopg.Connection
) -> None:
    """asyncpg replaces the error of a lost connection by one of the rollback."""
    lost: list[int] = []

    async def work(opened: Any) -> None:
        @contextlib.asynccontextmanager
        async def source() -> AsyncIterator[Any]:
            async with opened.acquire() as connection, connection.transaction():
                if is_working and len(lost) < 2:
                    lost.append(await connection.fetchval("SELECT pg_backend_pid()"))
                    observer.execute("SELECT pg_terminate_backend(%s, 60000)", [lost[-1]])
                yield connection

        is_working = False
        async with await leased(source, destination) as lease:
            is_working = True
            lease.record(Effect("t", 1))
        assert len(lost) == 2

    run(asyncpg_pool, work)
    assert len(Idem(observer).effects("m", destination)) == 1


def test_work_that_is_cancelled_again_and_again_is_not_counted(destination: str) -> None:
    async def work(opened: Any) -> None:
        started = asyncio.Event()

        async def attempt() -> None:
            async with await leased(opened, destination):
                started.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(attempt())
        await started.wait()
        while not task.done():
            task.cancel()
            await asyncio.sleep(0)
        while not isinstance(again := await async_lease(opened, "m", destination), AsyncLease):
            await asyncio.sleep(0.01)
        assert again.held.attempt == 1

    run(asyncpg_pool, work)


def test_lost_lease_of_a_body_with_another_error(
    destination: str, observer: psycopg.Connection
) -> None:
    async def work(opened: Any) -> None:
        with pytest.raises(LeaseLostError):
            async with await leased(opened, destination, SHORT) as lease:
                steal(observer, lease.held, destination)
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError as error:
                    raise ValueError("converted") from error
        task = asyncio.current_task()
        assert task is not None
        assert getattr(task, "cancelling", lambda: 0)() == 0

    run(asyncpg_pool, work)


def test_call_whose_result_is_no_json_is_never_repeated(
    destination: str, observer: psycopg.Connection
) -> None:
    keys: list[str] = []

    async def call(key: str) -> Any:
        keys.append(key)
        return object()

    async def work(opened: Any) -> None:
        async with await leased(opened, destination) as lease:
            for _ in range(2):
                with pytest.raises(CallRefusedError, match="result cannot be stored"):
                    await lease.once("s", 1, call, on_unknown=OnUnknown.REPEAT)

    run(asyncpg_pool, work)
    (recorded,) = Idem(observer).calls("m", destination)
    assert recorded.state == "failed"
    assert len(keys) == 1
