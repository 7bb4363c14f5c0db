"""The transaction of a request, and broken variants of it, which the tests must find."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from idem_pg import AsyncIdem, Claimed, Outcome
from idem_pg.functions import Functions
from idem_pg.http import statements
from idem_pg.http.fingerprint import journal_request
from idem_pg.http.in_transaction import AsgiTransactionAttempt
from idem_pg.http.recorded import Recorded
from idem_pg.http.response import Response


class WithoutClaim(AsgiTransactionAttempt):
    """Neither claims the request nor records its response."""

    async def _begin(self) -> tuple[AsyncExitStack, Any, Outcome]:
        stack = AsyncExitStack()
        return stack, await stack.enter_async_context(self._open()), Claimed()

    async def _record(self, idem: Functions, recorded: Recorded) -> None:
        """Records nothing."""


class RespondsFirst(AsgiTransactionAttempt):
    """Sends the response before its commit."""

    async def response(self) -> Response | None:
        loop = asyncio.get_running_loop()
        self._early: asyncio.Future[Response | None] = loop.create_future()
        late = self._late = asyncio.create_task(super().response())
        await asyncio.wait([self._early, late], return_when=asyncio.FIRST_COMPLETED)
        return self._early.result() if self._early.done() else late.result()

    async def _handled(self, connection: Any) -> Recorded | None:
        recorded = await super()._handled(connection)
        self._early.set_result(None)
        return recorded


class RecordsApart(AsgiTransactionAttempt):
    """Records the response in a transaction of its own, after the commit of the writes."""

    _recorded: Recorded | None = None

    async def response(self) -> Response | None:
        response = await super().response()
        if self._recorded is not None:
            step = (self._identity.message_id, self._identity.destination, statements.STEP)
            async with self._open() as connection:
                idem = AsyncIdem(connection)
                await idem.begin_call(*step, journal_request(self._identity.fingerprint))
                await idem.finish_call(*step, self._recorded.to_json())
        return response

    async def _record(self, idem: Functions, recorded: Recorded) -> None:
        self._recorded = recorded
        await idem.run(statements.ALLOW_COMMIT)


VARIANTS: dict[str, type[AsgiTransactionAttempt]] = {
    "sound": AsgiTransactionAttempt,
    "without claim": WithoutClaim,
    "responds first": RespondsFirst,
    "records apart": RecordsApart,
}
