"""Processes a request of Django in the transaction that claims it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from django.db import transaction
from django.http import HttpRequest

from ...executors import raise_caused
from ...outcomes import Claimed
from ...transactions import functions_of, retried
from ..attempt import Attempt, RollBackError
from ..options import keeps_writes
from ..problem import Kind, Problem, log, problem_of
from ..recorded import Recorded
from ..request_transaction import RequestTransaction
from ..retry import soon
from .responses import read_body, recorded_of, response_of


class TransactionAttempt(Attempt[Callable[[HttpRequest], Any]]):
    """Claims a request, runs its view, records the response, and commits."""

    _is_committed = False

    async def response(self, request: HttpRequest) -> Any:
        """Returns the response after the commit. Raises Problem."""
        try:
            stack, connection, outcome = await retried(self._open, self._begin, soon())
        except Exception as error:
            raise_caused(problem_of(error), error)
        if not isinstance(outcome, Claimed):
            await _roll_back(stack)
            return response_of(await self._not_claimed(outcome))
        try:
            response, recorded = self._handled(request, connection)
        except BaseException:
            await _roll_back(stack)
            raise
        if recorded is None:
            await _roll_back(stack)
            return response
        await self._commit(stack, connection, recorded)
        return response

    def _handled(self, request: HttpRequest, connection: Any) -> tuple[Any, Recorded | None]:
        """Runs the view in a savepoint. Returns its response, and the record if it has one."""
        using = connection.alias
        # The first function of on_commit: an exception of a later one does not hide the commit.
        transaction.on_commit(self._note_commit, using=using)
        shared = RequestTransaction(connection)
        request.idem = shared
        response, recorded, is_kept = None, None, True
        try:
            with transaction.atomic(using=using):
                response = self._handler(request)
                status = response.status_code
                is_kept = self._options.keeps(status)
                if is_kept:
                    body = read_body(response, self._options.response_limit)
                    recorded = recorded_of(self._options, self._identity, response, body)
                    keeps = keeps_writes(status, is_requested=shared.keeps_writes)
                    if keeps and connection.needs_rollback:
                        raise Problem(Kind.FAILED, "a statement of the request has failed")
                    transaction.set_rollback(not keeps, using=using)
        except Problem:
            raise
        except Exception as error:
            # A response that is not recorded is delivered, also if the view has ended the
            # transaction, so that its savepoint does not exist.
            if response is None:
                raise
            if recorded is not None:
                raise_caused(problem_of(error), error)
            if is_kept:
                log.exception("the response of a request with an idempotency key has failed")
                raise Problem(Kind.FAILED) from error
        return response, recorded

    async def _commit(self, stack: AsyncExitStack, connection: Any, recorded: Recorded) -> None:
        is_committing = False
        try:
            async with stack:
                await self._record(functions_of(self._open, connection), recorded)
                is_committing = True
        except Exception as error:
            if self._is_committed:
                log.exception("a function of on_commit failed after the commit of a request")
                return
            raise_caused(problem_of(error, is_committing=is_committing), error)

    def _note_commit(self) -> None:
        self._is_committed = True


async def _roll_back(stack: AsyncExitStack) -> None:
    """Rolls back. An error is only logged, because the server rejects a COMMIT until the end."""
    try:
        await stack.__aexit__(RollBackError, RollBackError(), None)
    except Exception as error:
        log.debug("cannot roll back, so the server does it: %s", error)
