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
from ..fingerprint import fingerprint_of
from ..identity import Identity
from ..leased import LeaseAttempt
from ..options import Options
from ..problem import Problem
from .in_transaction import TransactionAttempt
from .leased_view import LeasedView
from .requests import body_of, keys_of, path_and_query_of
from .responses import response_of_problem

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
        try:
            message_id = self._message_id(request)
            return view(request) if message_id is None else self._once(message_id, request, view)
        except Problem as problem:
            return response_of_problem(problem)

    def _message_id(self, request: HttpRequest) -> str | None:
        options = self._options
        method, is_protected = request.method or "", hasattr(request, "idem")
        if options.protects(method, request.path_info, request, is_protected=is_protected):
            return options.message_id(keys_of(request), request)
        return None

    def _once(self, message_id: str, request: HttpRequest, view: View) -> Any:
        options = self._options
        body = body_of(request, options)
        fingerprint = fingerprint_of(request.method or "", path_and_query_of(request), body)
        identity = Identity(message_id, options.destination, fingerprint)
        if options.is_leased:
            leased = LeasedView(options, identity, view, request)
            return finished(LeaseAttempt(options, self._open, identity, leased).response())
        attempt = TransactionAttempt(options, self._open, identity, view)
        return finished(attempt.response(request))
