"""The savepoint of a session of SQLAlchemy, with objects of the ORM."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Iterator

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from idem_pg.http.request_transaction import Savepoint

TABLE = f"http_orm_{uuid.uuid4().hex[:12]}"


class Base(DeclarativeBase):
    """The classes of this module."""


class Order(Base):
    __tablename__ = TABLE

    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture(autouse=True)
def table() -> Iterator[None]:
    with psycopg.connect(autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {TABLE} (id int PRIMARY KEY)".encode())
        yield
        connection.execute(f"DROP TABLE {TABLE}".encode())


async def ended(driver: str, ids: list[int], is_kept: bool, is_flushed: bool) -> int:
    """Adds orders in a savepoint, ends it, commits, and returns the number of orders."""
    engine = create_async_engine(f"postgresql+{driver}://", poolclass=sqlalchemy.NullPool)
    make: async_sessionmaker[AsyncSession] = async_sessionmaker(engine)
    async with make.begin() as session:
        session.add(Order(id=0))
        savepoint = Savepoint(session)
        await savepoint.begin()
        for order in ids:
            session.add(Order(id=order))
            if is_flushed:
                with contextlib.suppress(IntegrityError):
                    await session.flush()
        await (savepoint.keep() if is_kept else savepoint.undo())
        await session.execute(sqlalchemy.text("SELECT 1"))
    async with make() as session:
        return await session.scalar(sqlalchemy.select(sqlalchemy.func.count(Order.id))) or 0


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
@pytest.mark.parametrize("is_flushed", [False, True])
def test_objects_of_the_handler_are_kept_or_dropped(driver: str, is_flushed: bool) -> None:
    """Goal: an object that is not written yet does not survive the rollback to the savepoint."""
    assert asyncio.run(ended(driver, [1, 2], False, is_flushed)) == 1
    with psycopg.connect(autocommit=True) as connection:
        connection.execute(f"TRUNCATE {TABLE}".encode())
    assert asyncio.run(ended(driver, [1, 2], True, is_flushed)) == 3


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_savepoint_survives_a_failed_flush(driver: str) -> None:
    assert asyncio.run(ended(driver, [1, 0], False, True)) == 1
