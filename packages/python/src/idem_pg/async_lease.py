"""Leases with renewal in the background."""

from __future__ import annotations

import enum
from datetime import timedelta
from types import TracebackType
from typing import Any
from uuid import UUID

from .effects import Effect, Effects, json_copy, list_of, text_of
from .errors import IdemError, LeaseLostError, LeaseNotCompletedError
from .external_calls import Begun
from .functions import Functions
from .ids import MessageId
from .lease_rules import LOST, SHORT_LOCK_TIMEOUT, log_failure
from .leases import DEFAULT_LEASE, Exhausted, Held
from .once import (
    NOT_STORED,
    AsyncCall,
    AsyncQuery,
    CallNotDoneError,
    CallRefusedError,
    OnUnknown,
    UnknownResultError,
    is_final,
    is_not_storable,
    text_of_error,
    unknown_of,
)
from .outcomes import Dead, Duplicate, InProgress, Settlement
from .renewal import TaskRenewal, ThreadRenewal
from .transactions import (
    AsyncTransactions,
    BlockingTransactions,
    Work,
    async_transactions,
    functions_of,
    short_transaction,
)


async def async_lease(
    source: Any, message_id: MessageId, destination: str, duration: timedelta = DEFAULT_LEASE
) -> AsyncLease | Exhausted | Duplicate | InProgress | Dead:
    """Acquires the lease of a message, in a transaction of its own.

    `source` opens transactions: see `async_transactions`. A lost connection is retried.
    """
    opened = async_transactions(source)
    acquired = await short_transaction(
        opened, lambda idem: idem.acquire(message_id, destination, duration)
    )
    return AsyncLease(opened, acquired) if isinstance(acquired, Held) else acquired


class Completion(enum.Enum):
    """What completes the message."""

    BY_BLOCK = enum.auto()
    """The normal end of the block."""
    BY_USER = enum.auto()
    """The user has called `complete` in a transaction of the user."""
    GIVEN_BACK = enum.auto()
    """The message is not completed, and its attempt does not count."""


class AsyncLease:
    """A lease that is renewed in the background while its block runs.

    The normal end of the block completes the message, in a transaction of its own: the lease
    becomes the claim, and the effects of `record` are recorded. After an exception the message is
    released with the error, and waits for its retry. If the lease is lost, the block ends with
    LeaseLostError.
    """

    def __init__(self, source: Any, held: Held) -> None:
        self.held = held
        self._transactions: AsyncTransactions = async_transactions(source)
        self._effects: list[Effect] = []
        self._completion = Completion.BY_BLOCK
        self._is_completed = False
        is_blocking = isinstance(self._transactions, BlockingTransactions)
        self._renewal = (ThreadRenewal if is_blocking else TaskRenewal)(self._transactions, held)

    def record(self, effects: Effects) -> None:
        """Records effects when the message is completed."""
        added = list_of(effects)
        # An effect that is not JSON fails here, and not at the end of the block.
        text_of(added)
        self._effects.extend(added)

    def give_back(self) -> None:
        """Releases the message at the end of the block, without counting the attempt."""
        self._completion = Completion.GIVEN_BACK

    async def complete(self, connection: Any, effects: Effects = ()) -> list[UUID]:
        """Completes the message in the transaction of this connection, together with its writes.

        Returns the message ids of the effects: those of `record`, and these. Call it at the end of
        the transaction, and commit before the end of the block. It ends the renewal.
        """
        added = list_of(effects)
        self._renewal.stop()
        self._completion = Completion.BY_USER
        try:
            idem = functions_of(self._transactions, connection)
            return await idem.complete(self.held, [*self._effects, *added])
        except IdemError as error:
            raise self._or_lost(error) from error

    @property
    def settlement(self) -> Settlement:
        """It is "redeliver" until the block has completed the message, then "acknowledge"."""
        return "acknowledge" if self._is_completed else "redeliver"

    @property
    def is_lost(self) -> bool:
        """Whether the lease is lost or may be lost. Stop working then."""
        return self._renewal.is_lost

    async def once(
        self,
        step: str,
        request: Any,
        call: AsyncCall,
        *,
        on_unknown: OnUnknown | AsyncQuery,
    ) -> Any:
        """Makes an external call once, and returns its response.

        The request and the response are JSON. If the response is not, or the server rejects it, the
        call is refused: it was made, so it is never repeated, and its result is lost. An error of
        the environment, such as a full disk, leaves the result unknown. `500` and `500.0` are
        different requests.
        `call` gets the idempotency key. If an earlier attempt began the call and its result is not
        known, `on_unknown` decides: it repeats the call, fails, or looks the result up. An error of
        `call` other than CallRefusedError and CallNotDoneError leaves the result unknown.
        """
        begun = await self._begin(step, request)
        if begun.state == "done":
            return begun.response
        if begun.state == "failed":
            raise CallRefusedError(begun.error)
        try:
            response = await self._response(step, begun, call, on_unknown)
        except (CallRefusedError, CallNotDoneError) as error:
            await self._fail(step, error)
            raise
        return await self._finish(step, response)

    async def _response(
        self, step: str, begun: Begun, call: AsyncCall, on_unknown: OnUnknown | AsyncQuery
    ) -> Any:
        """Looks the response of an earlier attempt up, or makes the call."""
        if begun.state == "unknown":
            if on_unknown is OnUnknown.FAIL:
                raise UnknownResultError(step, unknown_of(begun))
            if not isinstance(on_unknown, OnUnknown):
                found = await on_unknown(unknown_of(begun))
                if found is not None:
                    return found.response
        return await call(begun.idempotency_key)

    async def __aenter__(self) -> AsyncLease:
        self._renewal.start()
        return self

    async def __aexit__(
        self,
        _type: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._renewal.stop()
        if self._renewal.is_cause_of(error):
            raise LeaseLostError(LOST) from error
        if error is not None or self._completion is Completion.GIVEN_BACK:
            await self._renewal.uninterrupted(self._release, error)
        elif self._completion is Completion.BY_BLOCK:
            await self._renewal.uninterrupted(self._end, None)
        elif not await self._run(self._is_claimed):
            raise LeaseNotCompletedError(
                "the transaction of `complete` did not commit before the end of the block"
            )
        else:
            self._is_completed = True

    async def _begin(self, step: str, request: Any) -> Begun:
        held = self.held
        seen: list[Begun] = []

        async def begin(idem: Functions) -> None:
            begun = await idem.begin_call(
                held.message_id, held.destination, step, request, token=held.token
            )
            seen.append(begun)

        try:
            await self._run(begin)
        except IdemError as error:
            raise self._or_lost(error) from error
        # After a lost reply the step is unknown because of this process itself.
        # `begun_at` differs if its entry was rolled back, and another process has begun the step.
        is_own = (
            seen[0].state == "new"
            and seen[-1].state == "unknown"
            and seen[0].begun_at == seen[-1].begun_at
        )
        return seen[0] if is_own else seen[-1]

    async def _finish(self, step: str, response: Any) -> Any:
        held = self.held
        try:
            response = json_copy(response)
            await self._run(
                lambda idem: idem.finish_call(held.message_id, held.destination, step, response)
            )
        except Exception as error:
            if not is_not_storable(error):
                raise
            refused = CallRefusedError(f"{NOT_STORED}: {error}")
            # As a response, this is recorded also after the lease is lost.
            await self._fail(step, refused, needs_lease=False)
            raise refused from error
        return response

    async def _fail(self, step: str, error: Exception, *, needs_lease: bool = True) -> None:
        held, retryable = self.held, isinstance(error, CallNotDoneError)
        text = str(error) or text_of_error(error)

        async def fail(idem: Functions) -> None:
            if needs_lease:
                # The holder of the next lease may be making the call, so only the holder records.
                await idem.extend(held)
            await idem.fail_call(held.message_id, held.destination, step, text, retryable=retryable)

        try:
            await self._run(fail)
        except IdemError as failed:
            raise self._or_lost(failed) from error

    async def _end(self, _: None) -> None:
        """Completes the message, or releases it with the error of the completion."""
        try:
            await self._complete()
        except Exception as error:
            is_unavailable = isinstance(error, IdemError) and error.is_connection_lost
            if not is_unavailable and not isinstance(error, LeaseLostError):
                await self._release(error)
            raise

    async def _complete(self) -> None:
        try:
            await self._run(lambda idem: idem.complete(self.held, self._effects))
        except IdemError as error:
            # The reply of an earlier attempt can be lost, so the message may be completed.
            if error.sqlstate != "55000" or not await self._run(self._is_claimed):
                raise self._or_lost(error) from error
        self._is_completed = True

    async def _release(self, error: BaseException | None) -> None:
        reason, final = None, False
        # An exception that ends the program is no failure of the message, so it is not counted.
        if self._completion is not Completion.GIVEN_BACK and isinstance(error, Exception):
            reason, final = text_of_error(error), is_final(error)

        async def release(idem: Functions) -> None:
            # A transaction of the user that has called `complete` can still be open.
            await idem.run(SHORT_LOCK_TIMEOUT)
            await idem.release(self.held, reason, final=final)

        try:
            await self._run(release)
        except Exception as failed:
            # The lease expires, and the attempt stays counted. The error of the block is more
            # useful to the caller.
            log_failure("release", self.held, failed)

    async def _is_claimed(self, idem: Functions) -> bool:
        return await idem.is_claimed(self.held.message_id, self.held.destination)

    async def _run(self, work: Work[Any]) -> Any:
        return await short_transaction(self._transactions, work)

    def _or_lost(self, error: IdemError) -> Exception:
        return LeaseLostError(LOST) if error.sqlstate == "55000" else error
