"""Looks up the recorded response of a request."""

from __future__ import annotations

from ..executors import raise_caused
from ..transactions import AsyncTransactions, async_short_transaction
from . import statements
from .application import Response
from .identity import Identity
from .problem import problem_of
from .recorded import Recorded, replay
from .responses import response_of


async def find(open_transaction: AsyncTransactions, identity: Identity) -> Recorded | None:
    """Returns the recorded response, or None if there is none. Raises Problem."""
    calls = statements.calls(identity.message_id, identity.destination)
    try:
        found = await async_short_transaction(open_transaction, lambda idem: idem.run(calls))
    except Exception as error:
        raise_caused(problem_of(error), error)
    return statements.recorded_in(found)


def replay_of(found: Recorded | None, identity: Identity) -> Response:
    return response_of(replay(found, identity.fingerprint))
