"""The view as the handler of a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest

from ...blocking import awaitable, finished
from ...once import Call, OnUnknown, Query, awaitable_query
from .. import leased
from ..problem import Kind, Problem, log
from ..request_transaction import shared_with
from ..response import Response
from .responses import headers_of, read_body


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


class ViewRun:
    """Runs the view, and keeps its response. See `Handler`. Its coroutines block."""

    response: Any = None
    """The response of the view, when it has returned one."""

    def __init__(
        self,
        view: Callable[[HttpRequest], Any],
        request: HttpRequest,
        limit_of: Callable[[int], int | None],
    ) -> None:
        # Django runs nothing after the response, so nothing reads this.
        self.is_recorded = False
        self._view = view
        self._request = request
        self._limit_of = limit_of

    async def run(self, shared: Any) -> Response:
        is_leased = isinstance(shared, leased.RequestLease)
        self._request.idem = RequestLease(shared) if is_leased else shared
        response = self.response = self._view(self._request)
        status = int(response.status_code)
        limit = self._limit_of(status)
        if limit is None:
            return Response(status, [], b"")
        try:
            body = read_body(response, limit)
            return Response(status, headers_of(response), body)
        except Problem:
            raise
        except Exception as error:
            log.exception("the response of a request with an idempotency key has failed")
            raise Problem(Kind.FAILED) from error

    async def stop(self) -> None:
        """Does nothing: a view that has returned or raised has ended."""
