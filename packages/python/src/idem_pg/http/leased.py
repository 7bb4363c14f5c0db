"""Processes a request under a lease, for work that cannot share a transaction."""

from __future__ import annotations

from typing import Any

from ..async_lease import AsyncLease, async_lease
from ..errors import IdemError, LeaseLostError, LeaseNotCompletedError
from ..executors import raise_caused
from ..functions import Functions
from ..lease_rules import LOST
from ..leases import Exhausted
from ..once import AsyncCall, AsyncQuery, OnUnknown
from ..outcomes import Dead, Duplicate, InProgress
from ..transactions import functions_of, retried, short_transaction
from . import statements
from .attempt import Attempt
from .fingerprint import journal_request
from .problem import Kind, Problem, log, problem_of
from .recorded import Recorded
from .request_transaction import shared_with
from .response import Response
from .retry import soon


class RequestLease:
    """The lease of a protected request, as its handler sees it."""

    def __init__(self, leased: AsyncLease) -> None:
        self._lease = leased
        self._was_rejected = False

    async def once(
        self,
        step: str,
        request: Any,
        call: AsyncCall,
        *,
        on_unknown: OnUnknown | AsyncQuery,
    ) -> Any:
        """Makes an external call once, and returns its response. See `once` of the lease."""
        try:
            return await self._lease.once(step, request, call, on_unknown=on_unknown)
        except LeaseLostError:
            self._was_rejected = True
            raise

    @property
    def is_lost(self) -> bool:
        """Whether the lease is lost or may be lost. Stop working then."""
        return self._was_rejected or self._lease.is_lost


def request_lease(request: Any) -> RequestLease:
    """Returns the lease of a protected request. Raises LookupError if it has none."""
    return shared_with(request, RequestLease, "lease")


class LeaseAttempt(Attempt):
    """Leases a request, runs its handler, and completes the lease with the record."""

    _recorded: Recorded | None = None
    _is_completed = False

    async def response(self) -> Response | None:
        identity = self._identity
        try:
            acquired = await async_lease(
                self._open, identity.message_id, identity.destination, self._options.lease
            )
        except Exception as error:
            raise_caused(problem_of(error), error)
        if not isinstance(acquired, AsyncLease):
            return await self._not_acquired(acquired)
        try:
            async with acquired:
                await self._bind_key(acquired)
                response = await self._handled(acquired)
                if self._options.keeps(response.status):
                    await self._complete(acquired, response)
                else:
                    acquired.give_back()
        except LeaseLostError:
            return await self._after_loss()
        except LeaseNotCompletedError as error:
            log.exception("the source of IdempotencyMiddleware has not committed a completion")
            raise Problem(Kind.IN_DOUBT) from error
        except Exception as error:
            if not self._is_completed:
                raise
            # The last check of the lease has failed. The completion has committed before it.
            log.debug("cannot check a completed request: %s", error)
        return None

    async def _not_acquired(self, acquired: Exhausted | Duplicate | InProgress | Dead) -> Response:
        match acquired:
            case Duplicate():
                return await self._replayed()
            case InProgress():
                raise Problem(Kind.IN_PROGRESS)
            case Exhausted(held):
                reason = held.last_error or "the request has no attempts left"
                try:
                    await short_transaction(
                        self._open, lambda idem: idem.release(held, reason, final=True)
                    )
                except Exception as error:
                    log.debug("an exhausted request stays leased until its end: %s", error)
        raise Problem(Kind.EXHAUSTED)

    async def _bind_key(self, acquired: AsyncLease) -> None:
        """Binds the key to this request.

        An attempt at another request with the key may have had an effect outside of the database,
        so the key cannot be used for this request.
        """
        identity = self._identity
        request = journal_request(identity.fingerprint)

        async def bind(idem: Functions) -> None:
            # Fails in autocommit mode, in which the completion and the record would be two commits.
            await idem.run(statements.FORBID_COMMIT)
            await idem.begin_call(
                identity.message_id, identity.destination, statements.STEP, request
            )
            await idem.run(statements.ALLOW_COMMIT)

        try:
            await short_transaction(self._open, bind)
        except Exception as error:
            acquired.give_back()
            if isinstance(error, IdemError) and error.sqlstate == "23000":
                raise Problem(Kind.MISMATCH) from error
            raise_caused(problem_of(error), error)

    async def _handled(self, acquired: AsyncLease) -> Response:
        shared = RequestLease(acquired)
        try:
            response = await self._handler.run(shared)
            if shared.is_lost and not self._options.keeps(response.status):
                # Another process works on the request, so this failure does not tell its result.
                raise LeaseLostError(LOST)
        except BaseException:
            # In a task, this includes its cancellation by the renewal, when the lease is lost.
            acquired.give_back()
            await self._handler.stop()
            raise
        return response

    async def _complete(self, acquired: AsyncLease, response: Response) -> None:
        """Records the response and completes the lease, in one transaction."""
        identity = self._identity

        async def complete() -> None:
            recorded = self._recorded = self._record_of(response)
            async with self._open() as connection:
                await acquired.complete(connection)
                await functions_of(self._open, connection).finish_call(
                    identity.message_id, identity.destination, statements.STEP, recorded.to_json()
                )

        try:
            await retried(self._open, complete, soon())
        except LeaseLostError:
            raise
        except Exception as error:
            raise_caused(problem_of(error).after_work(), error)
        self._is_completed = True
        self._handler.is_recorded = True

    async def _after_loss(self) -> Response | None:
        """Returns the response after another process, or a commit without a reply, has won."""
        if self._recorded is None:
            # The handler has not ended, or has failed. A repeated request shows the result.
            raise Problem(Kind.IN_DOUBT)
        try:
            found = await self._found()
        except Problem as problem:
            raise_caused(problem.after_work(), problem)
        if found is None:
            raise Problem(Kind.IN_DOUBT)
        if found == self._recorded:
            self._handler.is_recorded = True
            return None
        return found.replayed(self._identity.fingerprint)
