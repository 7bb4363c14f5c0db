"""Processes a request under a lease, for work that cannot share a transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ..async_idem import AsyncIdem
from ..async_lease import AsyncLease, async_lease
from ..errors import IdemError, LeaseLostError, LeaseNotCompletedError
from ..executors import raise_caused
from ..leases import Exhausted
from ..once import AsyncQuery, OnUnknown
from ..outcomes import Dead, Duplicate, InProgress
from ..transactions import AsyncTransactions, async_short_transaction
from . import statements
from .application import ApplicationRun, Response
from .identity import Identity
from .journal import find, replay_of
from .options import Options
from .problem import Kind, Problem, log, problem_of
from .recorded import Recorded
from .responses import recorded_of
from .retry import async_retried


class RequestLease:
    """The lease of a protected request, as its handler sees it."""

    def __init__(self, lease: AsyncLease) -> None:
        self._lease = lease

    async def once(
        self,
        step: str,
        request: Any,
        call: Callable[[str], Awaitable[Any]],
        *,
        on_unknown: OnUnknown | AsyncQuery,
    ) -> Any:
        """Makes an external call once, and returns its response. See `AsyncLease.once`."""
        return await self._lease.once(step, request, call, on_unknown=on_unknown)

    @property
    def is_lost(self) -> bool:
        """Whether the lease is lost or may be lost. Stop working then."""
        return self._lease.is_lost


class LeaseAttempt:
    """Leases a request, runs its handler, and completes the lease with the record."""

    def __init__(
        self,
        options: Options,
        open_transaction: AsyncTransactions,
        identity: Identity,
        run: ApplicationRun,
    ) -> None:
        self._options = options
        self._open = open_transaction
        self._identity = identity
        self._run = run
        self._recorded: Recorded | None = None
        self._is_completed = False

    async def response(self) -> Response:
        """Returns the response after its record. Raises Problem or the error of the handler."""
        identity = self._identity
        try:
            lease = await async_lease(
                self._open, identity.message_id, identity.destination, self._options.lease
            )
        except Exception as error:
            raise_caused(problem_of(error), error)
        if not isinstance(lease, AsyncLease):
            return await self._not_acquired(lease)
        response: Response | None = None
        try:
            async with lease:
                await self._bind_key(lease)
                response = await self._handled(lease)
                if self._options.keeps(response.status):
                    await self._complete(lease, response)
                else:
                    lease.give_back()
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

    async def _not_acquired(self, acquired: Exhausted | Duplicate | InProgress | Dead) -> Response:
        match acquired:
            case Duplicate():
                return replay_of(await find(self._open, self._identity), self._identity)
            case InProgress():
                raise Problem(Kind.IN_PROGRESS)
            case Exhausted(held):
                reason = held.last_error or "the request has no attempts left"
                try:
                    await async_short_transaction(
                        self._open, lambda idem: idem.release(held, reason, final=True)
                    )
                except Exception as error:
                    log.debug("an exhausted request stays leased until its end: %s", error)
        raise Problem(Kind.EXHAUSTED)

    async def _bind_key(self, lease: AsyncLease) -> None:
        """Binds the key to this request.

        An attempt at another request with the key may have had an effect outside of the database,
        so the key cannot be used for this request.
        """
        identity = self._identity
        begin = statements.begin_record(
            identity.message_id, identity.destination, identity.fingerprint
        )

        async def bind(idem: AsyncIdem) -> None:
            # Fails in autocommit mode, in which the completion and the record would be two commits.
            await idem.run(statements.FORBID_COMMIT)
            await idem.run(begin)
            await idem.run(statements.ALLOW_COMMIT)

        try:
            await async_short_transaction(self._open, bind)
        except Exception as error:
            lease.give_back()
            if isinstance(error, IdemError) and error.sqlstate == "23000":
                raise Problem(Kind.MISMATCH) from error
            raise_caused(problem_of(error), error)

    async def _handled(self, lease: AsyncLease) -> Response:
        self._run.scope["idem"] = RequestLease(lease)
        try:
            return await self._run.response()
        except BaseException:
            # Includes the cancellation by the renewal, when the lease is lost.
            lease.give_back()
            await self._run.stop()
            raise

    async def _complete(self, lease: AsyncLease, response: Response) -> None:
        """Records the response and completes the lease, in one transaction."""
        identity = self._identity

        async def complete() -> None:
            recorded = self._recorded = recorded_of(self._options, identity, response)
            finish = statements.finish_record(identity.message_id, identity.destination, recorded)
            async with self._open() as connection:
                await lease.complete(connection)
                await AsyncIdem(connection).run(finish)

        try:
            await async_retried(complete)
        except LeaseLostError:
            raise
        except Exception as error:
            raise_caused(problem_of(error).after_work(), error)
        self._is_completed = self._run.is_recorded = True

    async def _after_loss(self, response: Response | None) -> Response:
        """Returns the response after another process, or a commit without a reply, has won."""
        if response is None or self._recorded is None:
            # The handler was stopped. A repeated request shows the result.
            raise Problem(Kind.IN_DOUBT)
        try:
            found = await find(self._open, self._identity)
        except Problem as problem:
            raise_caused(problem.after_work(), problem)
        if found is None:
            raise Problem(Kind.IN_DOUBT)
        if found == self._recorded:
            self._run.is_recorded = True
            return response
        return replay_of(found, self._identity)
