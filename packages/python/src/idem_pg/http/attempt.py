"""What the attempts at a request have in common, in a transaction and under a lease."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any, Generic, TypeVar

from ..executors import raise_caused
from ..functions import Functions
from ..outcomes import InProgress, Mismatch, Outcome
from ..transactions import AsyncTransactions, functions_of, short_transaction
from . import statements
from .identity import Identity
from .options import Options
from .problem import Kind, Problem, problem_of
from .recorded import Recorded, replay

H = TypeVar("H")


class RollBackError(Exception):
    """Ends the block of a transaction, so that it is rolled back."""


class Attempt(Generic[H]):
    """An attempt to process a request with its handler."""

    def __init__(
        self, options: Options, open_transaction: AsyncTransactions, identity: Identity, handler: H
    ) -> None:
        self._options = options
        self._open = open_transaction
        self._identity = identity
        self._handler = handler

    async def _begin(self) -> tuple[AsyncExitStack, Any, Outcome]:
        """Begins a transaction with the claim. The caller ends it with the stack."""
        claim = statements.claim_and_forbid_commit(self._identity)
        async with AsyncExitStack() as stack:
            connection = await stack.enter_async_context(self._open())
            outcome = await functions_of(self._open, connection).run(claim)
            return stack.pop_all(), connection, outcome
        raise AssertionError("the context manager has swallowed an exception")

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

    async def _replayed(self) -> Recorded:
        """Returns the response to a request whose key is claimed. Raises Problem."""
        return replay(await self._found(), self._identity.fingerprint)

    async def _not_claimed(self, outcome: Outcome) -> Recorded:
        """Returns the response to a request that this attempt has not claimed. Raises Problem."""
        match outcome:
            case InProgress():
                raise Problem(Kind.IN_PROGRESS)
            case Mismatch():
                raise Problem(Kind.MISMATCH)
        return await self._replayed()

    async def _record(self, idem: Functions, recorded: Recorded) -> None:
        """Records the response in the transaction that has claimed the request."""
        await idem.run(statements.record(self._identity, recorded))
