"""The view as the handler of a leased request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest

from ..identity import Identity
from ..leased import RequestLease
from ..options import Options
from ..problem import Kind, Problem, log
from ..recorded import Recorded
from .responses import read_body, recorded_of, response_of


class LeasedView:
    """Runs the view under a lease. See `LeasedHandler`."""

    def __init__(
        self,
        options: Options,
        identity: Identity,
        get_response: Callable[[HttpRequest], Any],
        request: HttpRequest,
    ) -> None:
        self._options = options
        self._identity = identity
        self._get_response = get_response
        self._request = request
        self._body = b""

    def run(self, shared: RequestLease) -> Any:
        self._request.idem = shared
        response = self._get_response(self._request)
        limit = self._options.limit_of(response.status_code)
        if limit is not None:
            try:
                self._body = read_body(response, limit)
            except Problem:
                raise
            except Exception as error:
                log.exception("the response of a request with an idempotency key has failed")
                raise Problem(Kind.FAILED) from error
        return response

    def stop(self) -> None:
        """Does nothing: a view that has returned or raised has ended."""

    def status_of(self, response: Any) -> int:
        return int(response.status_code)

    def recorded_of(self, response: Any) -> Recorded:
        return recorded_of(self._options, self._identity, response, self._body)

    def response_of(self, recorded: Recorded) -> Any:
        return response_of(recorded)

    def note_record(self) -> None:
        """Does nothing: Django runs nothing after the response."""
