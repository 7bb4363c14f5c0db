"""`process`, and errors of statements that a handler catches."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from connections import ASYNC, ASYNCPG, ENGINE, PSYCOPG, SYNC
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from idem_pg import (
    Duplicate,
    Effect,
    Idem,
    IdemError,
    InProgress,
    Mismatch,
    Processed,
    async_process,
    idempotent,
    process,
)
from idem_pg.blocking import finished
from idem_pg.connections import driver_of

DESTINATION = "python.process"
ENDED = "the handler has ended the transaction|closed transaction inside context manager"
CAUGHT = "the handler has caught the error of a statement"


def work_of(observer: psycopg.Connection, message_id: str) -> int:
    row = observer.execute("SELECT count(*) FROM work WHERE id = %s", [message_id]).fetchone()
    assert row is not None
    return int(row[0])


def execute(connection: Any, sql: str) -> None:
    """Executes a statement with the driver itself."""
    if hasattr(connection, "vendor"):
        with connection.cursor() as cursor:
            cursor.execute(sql)
    elif type(connection).__module__.startswith("sqlalchemy"):
        connection.execute(sqlalchemy.text(sql))
    else:
        connection.execute(sql)


async def execute_async(connection: Any, sql: str) -> None:
    is_sqlalchemy = type(connection).__module__.startswith("sqlalchemy")
    await connection.execute(sqlalchemy.text(sql) if is_sqlalchemy else sql)


def sources() -> list[Any]:
    from django.db import connection

    def function() -> Any:
        return psycopg.connect()

    return [
        pytest.param(function, id="psycopg"),
        pytest.param(ENGINE, id="sqlalchemy.Engine"),
        pytest.param(sessionmaker(ENGINE), id="sqlalchemy.sessionmaker"),
        pytest.param(connection, id="django"),
    ]


@contextlib.asynccontextmanager
async def asyncpg_source() -> AsyncIterator[Any]:
    async with asyncpg.create_pool(min_size=1, max_size=2) as pool:
        yield pool


@contextlib.asynccontextmanager
async def psycopg_source() -> AsyncIterator[Any]:
    async with AsyncConnectionPool(min_size=0, max_size=2, open=False) as pool:
        yield pool


@contextlib.asynccontextmanager
async def asyncpg_engine() -> AsyncIterator[Any]:
    engine = create_async_engine(ASYNCPG)
    yield engine
    await engine.dispose()


@contextlib.asynccontextmanager
async def psycopg_engine() -> AsyncIterator[Any]:
    engine = create_async_engine(PSYCOPG)
    yield engine
    await engine.dispose()


@contextlib.asynccontextmanager
async def sessions() -> AsyncIterator[Any]:
    async with asyncpg_engine() as engine:
        yield async_sessionmaker(engine)


ASYNC_SOURCES = [asyncpg_source, psycopg_source, asyncpg_engine, psycopg_engine, sessions]


@pytest.mark.parametrize("source", sources())
def test_work_and_effects_are_committed_once(
    source: Any, message_id: str, observer: psycopg.Connection
) -> None:
    def handler(connection: Any) -> Effect:
        execute(connection, f"INSERT INTO work VALUES ('{message_id}')")
        return Effect("t", 1)

    processed = process(source, message_id, DESTINATION, handler)
    assert isinstance(processed, Processed)
    assert isinstance(process(source, message_id, DESTINATION, handler), Duplicate)
    found = Idem(observer).effects(message_id, DESTINATION)
    assert [effect.message_id for effect in found] == processed.message_ids
    assert work_of(observer, message_id) == 1


@pytest.mark.parametrize("source", ASYNC_SOURCES)
def test_work_of_a_coroutine_is_committed_once(
    source: Any, message_id: str, observer: psycopg.Connection
) -> None:
    async def handler(connection: Any) -> None:
        await execute_async(connection, f"INSERT INTO work VALUES ('{message_id}')")

    async def main() -> None:
        async with source() as opened:
            found = await async_process(opened, message_id, DESTINATION, handler)
            assert found == Processed([])
            found = await async_process(opened, message_id, DESTINATION, handler)
            assert isinstance(found, Duplicate)

    asyncio.run(main())
    assert work_of(observer, message_id) == 1


@pytest.mark.parametrize("source", sources())
def test_caught_error_of_a_statement_is_raised(
    source: Any, message_id: str, observer: psycopg.Connection
) -> None:
    def handler(connection: Any) -> Effect:
        execute(connection, f"INSERT INTO work VALUES ('{message_id}')")
        with contextlib.suppress(Exception):
            execute(connection, "SELECT 1 / 0")
        return Effect("t", 1)

    with pytest.raises(IdemError, match=f"{CAUGHT}.*: division by zero$") as caught:
        process(source, message_id, DESTINATION, handler, retries=2)
    assert caught.value.sqlstate == "25P02"
    assert not Idem(observer).is_claimed(message_id, DESTINATION)
    assert work_of(observer, message_id) == 0


@pytest.mark.parametrize("source", ASYNC_SOURCES)
def test_caught_error_of_a_coroutine_is_raised(
    source: Any, message_id: str, observer: psycopg.Connection
) -> None:
    async def handler(connection: Any) -> None:
        await execute_async(connection, f"INSERT INTO work VALUES ('{message_id}')")
        with contextlib.suppress(Exception):
            await execute_async(connection, "SELECT 1 / 0")

    async def main() -> None:
        async with source() as opened:
            with pytest.raises(IdemError, match=CAUGHT) as caught:
                await async_process(opened, message_id, DESTINATION, handler)
            assert caught.value.sqlstate == "25P02"

    asyncio.run(main())
    assert not Idem(observer).is_claimed(message_id, DESTINATION)


@pytest.mark.parametrize("name", SYNC)
def test_caught_error_of_an_idempotent_handler_is_raised(
    name: str, message_id: str, observer: psycopg.Connection
) -> None:
    @idempotent(destination=DESTINATION, id=lambda: message_id)
    def handler(connection: Any) -> None:
        with contextlib.suppress(Exception):
            execute(connection, "SELECT 1 / 0")

    with pytest.raises(IdemError, match=f"{CAUGHT}.*: division by zero$"):
        with SYNC[name]() as connection:
            handler(connection)
    assert not Idem(observer).is_claimed(message_id, DESTINATION)


@pytest.mark.parametrize("name", ASYNC)
def test_caught_error_of_an_idempotent_coroutine_is_raised(name: str, message_id: str) -> None:
    @idempotent(destination=DESTINATION, id=lambda: message_id)
    async def handler(connection: Any) -> None:
        with contextlib.suppress(Exception):
            await execute_async(connection, "SELECT 1 / 0")

    async def main() -> None:
        async with ASYNC[name]() as connection:
            await handler(connection)

    with pytest.raises(IdemError, match=CAUGHT) as caught:
        asyncio.run(main())
    assert caught.value.sqlstate == "25P02"


def rolled_back(connection: Any) -> Any:
    """Rolls back as a handler does that repeats its work."""
    if hasattr(connection, "vendor"):
        return execute(connection, "ROLLBACK")
    return (connection if hasattr(connection, "rollback") else connection.connection).rollback()


@pytest.mark.parametrize("is_used_again", [False, True])
@pytest.mark.parametrize("name", SYNC)
def test_rollback_of_an_idempotent_handler_is_raised(
    name: str, is_used_again: bool, message_id: str, observer: psycopg.Connection
) -> None:
    @idempotent(destination=DESTINATION, id=lambda: message_id)
    def handler(connection: Any) -> None:
        rolled_back(connection)
        if is_used_again:
            execute(connection, f"INSERT INTO work VALUES ('{message_id}')")

    # A block of SQLAlchemy raises its own error.
    with pytest.raises((IdemError, InvalidRequestError), match=ENDED):
        with SYNC[name]() as connection:
            handler(connection)
    assert not Idem(observer).is_claimed(message_id, DESTINATION)
    assert work_of(observer, message_id) == 0


@pytest.mark.parametrize("name", ASYNC)
def test_rollback_of_an_idempotent_coroutine_is_raised(name: str, message_id: str) -> None:
    @idempotent(destination=DESTINATION, id=lambda: message_id)
    async def handler(connection: Any) -> None:
        await execute_async(connection, "ROLLBACK")

    async def main() -> None:
        async with ASYNC[name]() as connection:
            await handler(connection)

    with pytest.raises(IdemError, match=ENDED) as caught:
        asyncio.run(main())
    assert caught.value.sqlstate == "2D000"


def test_error_that_django_has_rolled_back_is_raised(
    message_id: str, observer: psycopg.Connection
) -> None:
    from django.db import DatabaseError, connection, transaction

    @idempotent(destination=DESTINATION, id=lambda: message_id)
    def handler(connection: Any) -> None:
        with contextlib.suppress(DatabaseError), transaction.atomic(savepoint=False):
            execute(connection, "SELECT 1 / 0")

    with pytest.raises(transaction.TransactionManagementError), transaction.atomic():
        handler(connection)
    assert not Idem(observer).is_claimed(message_id, DESTINATION)


def test_error_in_a_savepoint_can_be_caught(pool: ConnectionPool, message_id: str) -> None:
    @idempotent(destination=DESTINATION, id=lambda: message_id)
    def handler(connection: psycopg.Connection) -> str:
        with contextlib.suppress(psycopg.Error), connection.transaction():
            connection.execute("SELECT 1 / 0")
        return "done"

    with pool.connection() as connection:
        assert handler(connection) == "done"
    with pool.connection() as connection:
        assert handler(connection) == Duplicate()


@pytest.mark.parametrize("is_used_again", [False, True])
@pytest.mark.parametrize("source", sources()[:3])
def test_handler_cannot_roll_back(
    source: Any, is_used_again: bool, message_id: str, observer: psycopg.Connection
) -> None:
    def handler(connection: Any) -> None:
        connection.rollback()
        if is_used_again:
            execute(connection, f"INSERT INTO work VALUES ('{message_id}')")

    with pytest.raises((IdemError, InvalidRequestError)):
        process(source, message_id, DESTINATION, handler)
    assert work_of(observer, message_id) == 0
    assert process(source, message_id, DESTINATION, lambda _: None) == Processed([])


@pytest.mark.parametrize("source", sources())
def test_handler_cannot_commit(source: Any, message_id: str, observer: psycopg.Connection) -> None:
    def handler(connection: Any) -> None:
        execute(connection, f"INSERT INTO work VALUES ('{message_id}')")
        execute(connection, "COMMIT")

    with pytest.raises(Exception, match="COMMIT is forbidden"):
        process(source, message_id, DESTINATION, handler)
    assert work_of(observer, message_id) == 0
    # The connection is usable.
    assert process(source, message_id, DESTINATION, lambda _: None) == Processed([])


@pytest.mark.parametrize("make", [lambda engine: engine, sessionmaker])
def test_commit_of_sqlalchemy_leaves_no_open_transaction(make: Any, message_id: str) -> None:
    engine = sqlalchemy.create_engine(PSYCOPG)
    source = make(engine)
    with pytest.raises(Exception, match="COMMIT is forbidden"):
        process(source, message_id, DESTINATION, lambda connection: connection.commit())
    assert process(source, message_id, DESTINATION, lambda _: None) == Processed([])
    engine.dispose()


@pytest.mark.parametrize("source", ASYNC_SOURCES)
def test_coroutine_cannot_commit(
    source: Any, message_id: str, observer: psycopg.Connection
) -> None:
    async def commit(connection: Any) -> None:
        await execute_async(connection, f"INSERT INTO work VALUES ('{message_id}')")
        if hasattr(connection, "commit"):
            await connection.commit()
        else:
            await connection.execute("COMMIT")

    async def nothing(connection: Any) -> None: ...

    async def main() -> None:
        async with source() as opened:
            with pytest.raises(Exception, match="COMMIT is forbidden"):
                await async_process(opened, message_id, DESTINATION, commit)
            assert work_of(observer, message_id) == 0
            assert await async_process(opened, message_id, DESTINATION, nothing) == Processed([])

    asyncio.run(main())


def test_error_of_the_handler_is_raised_as_it_is(
    pool: ConnectionPool, message_id: str, observer: psycopg.Connection
) -> None:
    error = ZeroDivisionError()

    def handler(connection: Any) -> None:
        raise error

    with pytest.raises(ZeroDivisionError) as caught:
        process(pool, message_id, DESTINATION, handler, retries=2)
    assert caught.value is error
    assert caught.value.__cause__ is None
    assert not Idem(observer).is_claimed(message_id, DESTINATION)


def test_error_of_another_system_is_not_repeated(pool: ConnectionPool, message_id: str) -> None:
    runs: list[int] = []

    def handler(connection: Any) -> None:
        runs.append(1)
        raise LookupError("no price") from ConnectionRefusedError("of another system")

    with pytest.raises(LookupError, match="no price"):
        process(pool, message_id, DESTINATION, handler, retries=2)
    assert len(runs) == 1


def test_other_outcomes_do_not_run_the_handler(pool: ConnectionPool, message_id: str) -> None:
    def fail(connection: Any) -> None:
        pytest.fail("the handler runs")

    with psycopg.connect() as connection:
        assert Idem(connection).claim(message_id, DESTINATION, fingerprint=b"a")
        found = process(pool, message_id, DESTINATION, fail, wait=False)
        assert isinstance(found, InProgress)
    found = process(pool, message_id, DESTINATION, fail, fingerprint=b"b")
    assert isinstance(found, Mismatch)

    async def coroutine(connection: Any) -> None: ...

    with pytest.raises(TypeError, match="async_process"):
        process(pool, message_id, DESTINATION, coroutine)  # type: ignore[arg-type]


@pytest.mark.parametrize("sqlstate", ["40001", "40P01"])
def test_conflict_is_repeated(
    sqlstate: str, pool: ConnectionPool, message_id: str, observer: psycopg.Connection
) -> None:
    runs: list[int] = []

    def handler(connection: psycopg.Connection) -> None:
        runs.append(1)
        connection.execute("INSERT INTO work VALUES (%s)", [message_id])
        if len(runs) < 3:
            connection.execute(
                "DO LANGUAGE plpgsql $$ BEGIN RAISE EXCEPTION 'conflict' "
                f"USING ERRCODE = '{sqlstate}'; END $$".encode()
            )

    with pytest.raises(psycopg.OperationalError, match="conflict"):
        process(pool, message_id, DESTINATION, handler, retries=1)
    assert len(runs) == 2
    assert process(pool, message_id, DESTINATION, handler, retries=1) == Processed([])
    assert work_of(observer, message_id) == 1


def test_conflict_of_the_commit_is_repeated(message_id: str, observer: psycopg.Connection) -> None:
    """Two transactions read what the other one writes: the server fails one of their commits."""
    runs: list[int] = []

    def handler(connection: psycopg.Connection) -> None:
        runs.append(1)
        connection.execute("SELECT count(*) FROM work")
        connection.execute("INSERT INTO work VALUES (%s)", [message_id])
        if len(runs) == 1:
            with source.connection() as other:
                other.execute("SELECT count(*) FROM work")
                other.execute("INSERT INTO work VALUES ('other')")

    options = {"options": "-c default_transaction_isolation=serializable"}
    with ConnectionPool(min_size=0, max_size=2, open=True, kwargs=options) as source:
        assert process(source, message_id, DESTINATION, handler, retries=1) == Processed([])
    assert len(runs) == 2
    assert work_of(observer, message_id) == 1


def pid_of(driver: Any) -> int:
    return int(driver.info.backend_pid if hasattr(driver, "info") else driver.get_server_pid())


@pytest.mark.parametrize("source", sources())
def test_lost_connection_is_repeated_before_the_commit(
    source: Any, message_id: str, observer: psycopg.Connection
) -> None:
    runs: list[int] = []

    def handler(connection: Any) -> None:
        runs.append(pid_of(finished(driver_of(connection))))
        if len(runs) == 1:
            observer.execute("SELECT pg_terminate_backend(%s, 60000)", [runs[0]])
        execute(connection, f"INSERT INTO work VALUES ('{message_id}')")

    assert process(source, message_id, DESTINATION, handler, retries=1) == Processed([])
    assert len(runs) == 2
    assert work_of(observer, message_id) == 1


@pytest.mark.parametrize("source", sources())
@pytest.mark.parametrize("can_connect", [True, False])
def test_lost_connection_of_another_database_is_not_repeated(
    source: Any, can_connect: bool, message_id: str, observer: psycopg.Connection
) -> None:
    runs: list[int] = []

    def handler(connection: Any) -> None:
        runs.append(1)
        with psycopg.connect(host=None if can_connect else "/nowhere") as other:
            pid = other.info.backend_pid
            observer.execute("SELECT pg_terminate_backend(%s, 60000)", [pid])
            other.execute("SELECT 1")

    with pytest.raises(psycopg.OperationalError):
        process(source, message_id, DESTINATION, handler, retries=2)
    assert len(runs) == 1


@pytest.mark.parametrize("source", ASYNC_SOURCES)
def test_lost_connection_of_another_database_ends_a_coroutine(
    source: Any, message_id: str, observer: psycopg.Connection
) -> None:
    runs: list[int] = []

    async def handler(connection: Any) -> None:
        runs.append(1)
        async with await psycopg.AsyncConnection.connect() as other:
            pid = other.info.backend_pid
            observer.execute("SELECT pg_terminate_backend(%s, 60000)", [pid])
            await other.execute("SELECT 1")

    async def main() -> None:
        async with source() as opened:
            with pytest.raises(psycopg.OperationalError):
                await async_process(opened, message_id, DESTINATION, handler, retries=2)

    asyncio.run(main())
    assert len(runs) == 1


@pytest.mark.parametrize("retries", [-1, 1.5, "1", None])
def test_number_of_retries_is_checked(retries: Any, pool: ConnectionPool, message_id: str) -> None:
    def fail(connection: Any) -> None:
        pytest.fail("the handler runs")

    with pytest.raises(ValueError, match="retries is an integer from 0"):
        process(pool, message_id, DESTINATION, fail, retries=retries)


@pytest.mark.parametrize("source", ASYNC_SOURCES)
def test_lost_connection_of_a_coroutine_is_repeated(
    source: Any, message_id: str, observer: psycopg.Connection
) -> None:
    runs: list[int] = []

    async def handler(connection: Any) -> None:
        runs.append(pid_of(await driver_of(connection)))
        if len(runs) == 1:
            observer.execute("SELECT pg_terminate_backend(%s, 60000)", [runs[0]])
        await execute_async(connection, f"INSERT INTO work VALUES ('{message_id}')")

    async def main() -> None:
        async with source() as opened:
            found = await async_process(opened, message_id, DESTINATION, handler, retries=1)
            assert found == Processed([])

    asyncio.run(main())
    assert len(runs) == 2
    assert work_of(observer, message_id) == 1


def test_lost_reply_to_the_commit_is_not_repeated(
    message_id: str, observer: psycopg.Connection
) -> None:
    runs: list[int] = []

    @contextlib.contextmanager
    def lossy() -> Iterator[Any]:
        with psycopg.connect() as connection:
            yield connection
        raise psycopg.OperationalError("the connection is lost")

    with pytest.raises(IdemError) as lost:
        process(lossy, message_id, DESTINATION, lambda _: runs.append(1), retries=3)
    assert lost.value.is_connection_lost
    assert len(runs) == 1
    assert Idem(observer).is_claimed(message_id, DESTINATION)
