"""The view as the handler of a leased request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest

from ...blocking import awaitable, finished
from ...once import Call, OnUnknown, Query, awaitable_query
from .. import leased
from ..identity import Identity
from ..options import Options
from ..problem import Kind, Problem, log
from ..recorded import Recorded
from ..request_transaction import shared_with
from .responses import read_body, recorded_of, response_of


class RequestLease:
    """The lease of a protected request, as its view sees it."""

    def __init__(self, asynchronous: leased.RequestLease) -> None:
        self._asynchronous = asynchronous

    def once(self, step: str, request: Any, call: Call, *, on_unknown: OnUnknown | Query) -> Any:
        """Makes an external call once, and returns its response. See `once` of the lease."""
        made = self._asynchronous.once(
            step, request, awaitable(call), on_unknown=awaitable_query(on_unknown)
        )
        return finished(made)

    @property
    def is_lost(self) -> bool:
        """Whether the lease is lost or may be lost. Stop working then."""
        return self._asynchronous.is_lost


def request_lease(request: Any) -> RequestLease:
    """Returns the lease of a protected request. Raises LookupError if it has none."""
    return shared_with(request, RequestLease, "lease")


class LeasedView:
    """Runs the view under a lease. See `LeasedHandler`. Its coroutines block."""

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

    async def run(self, shared: leased.RequestLease) -> Any:
        self._request.idem = RequestLease(shared)
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

    async def stop(self) -> None:
        """Does nothing: a view that has returned or raised has ended."""

    def status_of(self, response: Any) -> int:
        return int(response.status_code)

    def recorded_of(self, response: Any) -> Recorded:
        return recorded_of(self._options, self._identity, response, self._body)

    def response_of(self, recorded: Recorded) -> Any:
        return response_of(recorded)

    def note_record(self) -> None:
        """Does nothing: Django runs nothing after the response."""
