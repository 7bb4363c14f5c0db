"""The ASGI application as the handler of a leased request."""

from __future__ import annotations

from .application import ApplicationRun, Response
from .identity import Identity
from .leased import RequestLease
from .options import Options
from .recorded import Recorded
from .responses import recorded_of, response_of


class LeasedApplication:
    """Runs the application under a lease. See `LeasedHandler`."""

    def __init__(self, options: Options, identity: Identity, application: ApplicationRun) -> None:
        self._options = options
        self._identity = identity
        self._application = application

    async def run(self, shared: RequestLease) -> Response:
        self._application.scope["idem"] = shared
        return await self._application.response()

    async def stop(self) -> None:
        await self._application.stop()

    def status_of(self, response: Response) -> int:
        return response.status

    def recorded_of(self, response: Response) -> Recorded:
        return recorded_of(self._options, self._identity, response)

    def response_of(self, recorded: Recorded) -> Response:
        return response_of(recorded)

    def note_record(self) -> None:
        self._application.is_recorded = True
