"""The protection of requests of Django, which the middleware and the decorator share."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.http import HttpRequest

from ...blocking import finished
from ...transactions import BlockingTransactions
from ..attempt import Attempt
from ..fingerprint import fingerprint_of
from ..identity import Identity
from ..leased import LeaseAttempt
from ..options import Options
from ..problem import Problem
from .in_transaction import DjangoTransactionAttempt
from .requests import body_of, keys_of, path_and_query_of
from .responses import http_response_of
from .view import ViewRun

View = Callable[[HttpRequest], Any]


def options_of(given: dict[str, Any]) -> Options:
    """Returns the options. Raises ImproperlyConfigured if they are invalid."""
    try:
        return Options(**given)
    except (TypeError, ValueError) as error:
        raise ImproperlyConfigured(str(error)) from error


class Protection:
    """Makes each request with an `Idempotency-Key` take effect once."""

    def __init__(self, options: Options, using: str) -> None:
        self._options = options
        self._using = using

    @cached_property
    def _open(self) -> BlockingTransactions:
        # A decorator is executed before Django is configured.
        return BlockingTransactions(connections[self._using])

    def response(self, request: HttpRequest, view: View) -> Any:
        """Returns the response of the view, its record, or that of a problem."""
        method, is_protected = request.method or "", hasattr(request, "idem")
        try:
            message_id = self._options.message_id(
                method, request.path_info, keys_of(request), request, is_protected=is_protected
            )
            return view(request) if message_id is None else self._once(message_id, request, view)
        except Problem as problem:
            return http_response_of(problem.response())

    def _once(self, message_id: str, request: HttpRequest, view: View) -> Any:
        options = self._options
        body = body_of(request, options)
        fingerprint = fingerprint_of(request.method or "", path_and_query_of(request), body)
        identity = Identity(message_id, options.destination, fingerprint)
        run = ViewRun(view, request, options.limit_of)
        kind: type[Attempt] = LeaseAttempt if options.is_leased else DjangoTransactionAttempt
        found = finished(kind(options, self._open, identity, run).response())
        return run.response if found is None else http_response_of(found)
