"""Processes a request under a lease, for work that cannot share a transaction."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

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
from .recorded import Recorded, replay
from .request_transaction import shared_with
from .retry import soon

R = TypeVar("R")


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


class LeasedHandler(Protocol[R]):
    """The handler of a request, and the conversions of its responses."""

    async def run(self, shared: RequestLease) -> R:
        """Runs the handler, and returns its complete response."""

    async def stop(self) -> None:
        """Stops a handler that has not ended, if that is possible."""

    def status_of(self, response: R) -> int:
        """Returns the status of a response."""

    def recorded_of(self, response: R) -> Recorded:
        """Converts a response of the handler to its record. Raises Problem."""

    def response_of(self, recorded: Recorded) -> R:
        """Converts a record to a replayed response."""

    def note_record(self) -> None:
        """Notes that the response of the handler is recorded."""


class LeaseAttempt(Attempt[LeasedHandler[R]]):
    """Leases a request, runs its handler, and completes the lease with the record."""

    _recorded: Recorded | None = None
    _is_completed = False

    async def response(self) -> R:
        """Returns the response after its record. Raises Problem or the error of the handler."""
        identity = self._identity
        try:
            acquired = await async_lease(
                self._open, identity.message_id, identity.destination, self._options.lease
            )
        except Exception as error:
            raise_caused(problem_of(error), error)
        if not isinstance(acquired, AsyncLease):
            return await self._not_acquired(acquired)
        response: R | None = None
        try:
            async with acquired:
                await self._bind_key(acquired)
                response = await self._handled(acquired)
                if self._options.keeps(self._handler.status_of(response)):
                    await self._complete(acquired, response)
                else:
                    acquired.give_back()
        except LeaseLostError:
            return await self._after_loss(response)
        except LeaseNotCompletedError as error:
            log.exception("the source of IdempotencyMiddleware has not committed a completion")
            raise Problem(Kind.IN_DOUBT) from error
        except Exception as error:
            if self._is_completed and response is not None:
                # The last check of the lease has failed. The completion has committed before it.
                log.debug("cannot check a completed request: %s", error)
                return response
            raise
        return response

    async def _not_acquired(self, acquired: Exhausted | Duplicate | InProgress | Dead) -> R:
        match acquired:
            case Duplicate():
                return self._handler.response_of(await self._replayed())
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

    async def _handled(self, acquired: AsyncLease) -> R:
        shared = RequestLease(acquired)
        try:
            response = await self._handler.run(shared)
            is_kept = self._options.keeps(self._handler.status_of(response))
            if shared.is_lost and not is_kept:
                # Another process works on the request, so this failure does not tell its result.
                raise LeaseLostError(LOST)
        except BaseException:
            # In a task, this includes its cancellation by the renewal, when the lease is lost.
            acquired.give_back()
            await self._handler.stop()
            raise
        return response

    async def _complete(self, acquired: AsyncLease, response: R) -> None:
        """Records the response and completes the lease, in one transaction."""
        identity = self._identity

        async def complete() -> None:
            recorded = self._recorded = self._handler.recorded_of(response)
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
        self._handler.note_record()

    async def _after_loss(self, response: R | None) -> R:
        """Returns the response after another process, or a commit without a reply, has won."""
        if response is None or self._recorded is None:
            # The handler has not ended, or has failed. A repeated request shows the result.
            raise Problem(Kind.IN_DOUBT)
        try:
            found = await self._found()
        except Problem as problem:
            raise_caused(problem.after_work(), problem)
        if found is None:
            raise Problem(Kind.IN_DOUBT)
        if found == self._recorded:
            self._handler.note_record()
            return response
        return self._handler.response_of(replay(found, self._identity.fingerprint))
