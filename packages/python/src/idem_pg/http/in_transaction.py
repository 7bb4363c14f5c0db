"""Processes a request in the transaction that claims it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from ..executors import raise_caused
from ..idem import AsyncIdem
from ..outcomes import Claimed
from ..transactions import retried
from .application import ApplicationRun, Response
from .attempt import Attempt, RollBackError
from .options import keeps_writes
from .problem import Kind, Problem, log, problem_of
from .request_transaction import (
    RequestTransaction,
    Savepoint,
    abandon,
    base_of,
    has_ended,
    is_closed,
    is_invalidated,
)
from .responses import recorded_of, response_of
from .retry import soon


class TransactionAttempt(Attempt[ApplicationRun]):
    """Claims a request, runs its handler, records the response, and commits."""

    _base: Any = None
    has_begun = False
    """Whether the request is claimed. Until then its task can be cancelled."""

    async def response(self) -> Response:
        """Returns the response after the commit. Raises Problem or the error of the handler."""
        try:
            stack, connection, outcome = await retried(self._open, self._begin, soon())
        except Exception as error:
            raise_caused(problem_of(error), error)
        self.has_begun = isinstance(outcome, Claimed)
        if not isinstance(outcome, Claimed):
            await _roll_back(stack, connection)
            return response_of(await self._not_claimed(outcome))
        transaction = RequestTransaction(connection)
        try:
            savepoint, response = await self._handled(connection, transaction)
        except BaseException:
            await _roll_back(stack, connection)
            raise
        if not self._options.keeps(response.status):
            await _roll_back(stack, connection)
            return response
        keeps = keeps_writes(response.status, is_requested=transaction.keeps_writes)
        try:
            await (savepoint.keep() if keeps else savepoint.undo())
            recorded = recorded_of(self._options, self._identity, response)
            await self._record(AsyncIdem(connection), recorded)
        except Exception as error:
            is_lost = is_closed(connection) or is_invalidated(self._base)
            await _roll_back(stack, connection)
            problem = problem_of(error)
            raise_caused(Problem(Kind.UNAVAILABLE) if is_lost else problem, error)
        try:
            await stack.aclose()
        except Exception as error:
            raise_caused(problem_of(error, is_committing=True), error)
        self._handler.is_recorded = True
        return response

    async def _handled(
        self, connection: Any, transaction: RequestTransaction
    ) -> tuple[Savepoint, Response]:
        savepoint = Savepoint(connection)
        try:
            self._base = await base_of(connection)
            await savepoint.begin()
        except Exception as error:
            raise_caused(problem_of(error), error)
        self._handler.scope["idem"] = transaction
        try:
            return savepoint, await self._handler.response()
        finally:
            transaction.end()


async def _roll_back(stack: AsyncExitStack, connection: Any) -> None:
    """Rolls back. An error is only logged, because the server rejects a COMMIT until then."""
    error = RollBackError()
    if has_ended(connection):
        await abandon(connection)
    try:
        await stack.__aexit__(RollBackError, error, None)
    except RollBackError:
        pass
    except Exception as failed:
        log.debug("cannot roll back, so the server does it: %s", failed)
        await abandon(connection)
