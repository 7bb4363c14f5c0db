"""What the attempts at a request have in common, in a transaction and under a lease."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from typing import Any, Protocol

from ..connections import discard, has_ended
from ..executors import raise_caused
from ..functions import Functions
from ..outcomes import Claimed, InProgress, Mismatch, Outcome
from ..transactions import AsyncTransactions, functions_of, retried, short_transaction
from . import statements
from .identity import Identity
from .options import Options
from .problem import Kind, Problem, log, problem_of
from .recorded import Recorded
from .response import Response
from .retry import soon


class RollBackError(Exception):
    """Ends the block of a transaction, so that it is rolled back."""


class Handler(Protocol):
    """The handler of one request. It keeps its response until the attempt has ended."""

    is_recorded: bool
    """Whether its response is recorded."""

    async def run(self, shared: Any) -> Response:
        """Runs the handler with its transaction or its lease.

        Returns its complete response, but only the status of one that is not recorded.
        """

    async def stop(self) -> None:
        """Stops a handler that has not ended, if that is possible."""


class Attempt(ABC):
    """An attempt to process a request with its handler."""

    def __init__(
        self,
        options: Options,
        open_transaction: AsyncTransactions,
        identity: Identity,
        handler: Handler,
    ) -> None:
        self._options = options
        self._open = open_transaction
        self._identity = identity
        self._handler = handler

    @abstractmethod
    async def response(self) -> Response | None:
        """Returns what the client gets after the record. None is the response of the handler.

        Raises Problem or the error of the handler.
        """

    def _record_of(self, response: Response) -> Recorded:
        """Converts a response of the handler to its record. Raises Problem."""
        return Recorded.of(self._identity.fingerprint, response, self._options.keep_headers)

    async def _found(self) -> Recorded | None:
        """Returns the recorded response, or None if there is none. Raises Problem."""
        message_id, destination = self._identity.message_id, self._identity.destination
        try:
            # In a transaction of its own: a snapshot that is older than the record does not see it.
            found = await short_transaction(
                self._open, lambda idem: idem.calls(message_id, destination)
            )
        except Exception as error:
            raise_caused(problem_of(error), error)
        return statements.recorded_in(found)

    async def _replayed(self) -> Response:
        """Returns the response to a request whose key is claimed. Raises Problem."""
        found = await self._found()
        if found is None:
            raise Problem(Kind.NOT_RECORDED)
        return found.replayed(self._identity.fingerprint)


class TransactionAttempt(Attempt):
    """Claims a request, runs its handler, records the response, and commits."""

    has_begun = False
    """Whether the request is claimed. Until then its task can be cancelled."""

    async def response(self) -> Response | None:
        try:
            stack, connection, outcome = await retried(self._open, self._begin, soon())
        except Exception as error:
            raise_caused(problem_of(error), error)
        self.has_begun = isinstance(outcome, Claimed)
        if not isinstance(outcome, Claimed):
            await roll_back(stack, connection)
            return await self._not_claimed(outcome)
        try:
            recorded = await self._handled(connection)
        except BaseException:
            await roll_back(stack, connection)
            raise
        if recorded is None:
            await roll_back(stack, connection)
            return None
        await self._commit(stack, connection, recorded)
        self._handler.is_recorded = True
        return None

    async def _begin(self) -> tuple[AsyncExitStack, Any, Outcome]:
        """Begins a transaction with the claim. The caller ends it with the stack."""
        claim = statements.claim_and_forbid_commit(self._identity)
        async with AsyncExitStack() as stack:
            connection = await stack.enter_async_context(self._open())
            outcome = await functions_of(self._open, connection).run(claim)
            return stack.pop_all(), connection, outcome
        raise AssertionError("the context manager has swallowed an exception")

    async def _not_claimed(self, outcome: Outcome) -> Response:
        """Returns the response to a request that this attempt has not claimed. Raises Problem."""
        match outcome:
            case InProgress():
                raise Problem(Kind.IN_PROGRESS)
            case Mismatch():
                raise Problem(Kind.MISMATCH)
        return await self._replayed()

    @abstractmethod
    async def _handled(self, connection: Any) -> Recorded | None:
        """Runs the handler in a savepoint. Returns the record, or None if there is none.

        Keeps or undoes the writes of the handler, as its response tells.
        """

    @abstractmethod
    async def _commit(self, stack: AsyncExitStack, connection: Any, recorded: Recorded) -> None:
        """Records the response, and commits."""

    async def _record(self, idem: Functions, recorded: Recorded) -> None:
        """Records the response in the transaction that has claimed the request."""
        await idem.run(statements.record(self._identity, recorded))


async def roll_back(stack: AsyncExitStack, connection: Any) -> None:
    """Rolls back. An error is only logged, because the server rejects a COMMIT until then."""
    if has_ended(connection):
        await discard(connection)
    try:
        await stack.__aexit__(RollBackError, RollBackError(), None)
    except RollBackError:
        pass
    except Exception as error:
        log.debug("cannot roll back, so the server does it: %s", error)
        await discard(connection)
