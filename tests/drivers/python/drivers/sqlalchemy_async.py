"""The AsyncSession of SQLAlchemy over asyncpg, which accepts only values of the parameter types."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from drivers.asyncpg import LOOP, parameter
from drivers.sqlalchemy_core import named, rows
from protocol import Refusal


class AsyncOrmSession:
    def __init__(self) -> None:
        # Both engines use the same connection.
        self.engine = create_async_engine("postgresql+asyncpg://", pool_size=1, max_overflow=0)
        self.autocommit = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        self.transaction: AsyncSession | None = None
        self.contexts = AsyncExitStack()

    def execute(self, sql: str, arguments: Sequence[Any]) -> list[list[Any]]:
        return LOOP.run_until_complete(self._refused(sql, arguments))

    async def _refused(self, sql: str, arguments: Sequence[Any]) -> list[list[Any]]:
        try:
            return await self._execute(sql, arguments)
        except DBAPIError as error:
            cause = error.driver_exception
            if not isinstance(cause, asyncpg.PostgresError):
                raise
            raise Refusal(cause.sqlstate, cause.hint, str(cause)) from error
        except asyncpg.PostgresError as error:
            raise Refusal(error.sqlstate, error.hint, str(error)) from error

    async def _execute(self, sql: str, arguments: Sequence[Any]) -> list[list[Any]]:
        if sql.startswith("BEGIN"):
            session = await self.contexts.enter_async_context(AsyncSession(self.engine))
            # Only the context of the transaction rolls back when COMMIT fails.
            await self.contexts.enter_async_context(session.begin())
            self.transaction = session
            if options := sql.removeprefix("BEGIN"):
                await session.execute(text(f"SET TRANSACTION{options}"))
            return []
        if self.transaction is None:
            async with AsyncSession(self.autocommit) as session:
                return await query(session, sql, arguments)
        if sql not in ("COMMIT", "ROLLBACK"):
            return await query(self.transaction, sql, arguments)
        if sql == "ROLLBACK":
            await self.transaction.rollback()
        self.transaction = None
        await self.contexts.aclose()
        return []

    def close(self) -> None:
        LOOP.run_until_complete(self._close())

    async def _close(self) -> None:
        if self.transaction is not None:
            await self.transaction.rollback()
        await self.contexts.aclose()
        await self.engine.dispose()


async def query(session: AsyncSession, sql: str, arguments: Sequence[Any]) -> list[list[Any]]:
    types = await parameter_types(session, sql) if arguments else []
    values = [parameter(*pair) for pair in zip(arguments, types, strict=True)]
    named_values = {f"p{number}": value for number, value in enumerate(values, 1)}
    return rows(await session.execute(text(named(sql)), named_values))


async def parameter_types(session: AsyncSession, sql: str) -> list[str]:
    """Returns the types of the parameters, which the author of a program knows."""
    connection = await (await session.connection()).get_raw_connection()
    statement = await connection.driver_connection.prepare(sql, name="")
    return [parameter.name for parameter in statement.get_parameters()]


connect = AsyncOrmSession
