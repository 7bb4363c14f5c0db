"""Processes a request of ASGI in the transaction that claims it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from ..executors import raise_caused
from ..idem import AsyncIdem
from .attempt import TransactionAttempt, roll_back
from .options import keeps_writes
from .problem import Kind, Problem, problem_of
from .recorded import Recorded
from .request_transaction import (
    RequestTransaction,
    Savepoint,
    base_of,
    is_closed,
    is_invalidated,
)


class AsgiTransactionAttempt(TransactionAttempt):
    """Runs the application in a savepoint of an asynchronous driver."""

    _base: Any = None

    async def _handled(self, connection: Any) -> Recorded | None:
        transaction = RequestTransaction(connection)
        savepoint = Savepoint(connection)
        try:
            self._base = await base_of(connection)
            await savepoint.begin()
        except Exception as error:
            raise_caused(problem_of(error), error)
        try:
            response = await self._handler.run(transaction)
        finally:
            transaction.end()
        if not self._options.keeps(response.status):
            return None
        keeps = keeps_writes(response.status, is_requested=transaction.keeps_writes)
        try:
            await (savepoint.keep() if keeps else savepoint.undo())
            return self._record_of(response)
        except Exception as error:
            raise_caused(self._problem_of(error, connection), error)

    async def _commit(self, stack: AsyncExitStack, connection: Any, recorded: Recorded) -> None:
        try:
            await self._record(AsyncIdem(connection), recorded)
        except Exception as error:
            problem = self._problem_of(error, connection)
            await roll_back(stack, connection)
            raise_caused(problem, error)
        try:
            await stack.aclose()
        except Exception as error:
            raise_caused(problem_of(error, is_committing=True), error)

    def _problem_of(self, error: Exception, connection: Any) -> Problem:
        """Converts an error after the handler. The error of a lost connection does not tell it."""
        is_lost = is_closed(connection) or is_invalidated(self._base)
        problem = problem_of(error)
        return Problem(Kind.UNAVAILABLE) if is_lost else problem
