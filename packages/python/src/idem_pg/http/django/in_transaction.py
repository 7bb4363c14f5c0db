"""Processes a request of Django in the transaction that claims it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from django.db import transaction

from ...executors import raise_caused
from ...transactions import functions_of
from ..attempt import TransactionAttempt
from ..options import keeps_writes
from ..problem import Kind, Problem, log, problem_of
from ..recorded import Recorded
from ..request_transaction import RequestTransaction
from ..response import Response


class DjangoTransactionAttempt(TransactionAttempt):
    """Runs the view in `atomic`."""

    _is_committed = False

    async def _handled(self, connection: Any) -> Recorded | None:
        using = connection.alias
        # The first function of on_commit: an exception of a later one does not hide the commit.
        transaction.on_commit(self._note_commit, using=using)
        shared = RequestTransaction(connection)
        response: Response | None = None
        recorded = None
        try:
            with transaction.atomic(using=using):
                response = await self._handler.run(shared)
                if self._options.keeps(response.status):
                    recorded = self._record_of(response)
                    keeps = keeps_writes(response.status, is_requested=shared.keeps_writes)
                    if keeps and connection.needs_rollback:
                        raise Problem(Kind.FAILED, "a statement of the request has failed")
                    transaction.set_rollback(not keeps, using=using)
        except Problem:
            raise
        except Exception as error:
            if response is None:
                # The view has failed.
                raise
            # A response that is not recorded is delivered, also if the view has ended the
            # transaction, so that its savepoint does not exist.
            if self._options.keeps(response.status):
                raise_caused(problem_of(error), error)
        return recorded

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
