"""The middleware class of Django, and its settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, ClassVar

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.http import HttpRequest
from django.utils.module_loading import import_string

from ...blocking import finished
from ...transactions import BlockingTransactions
from ..fingerprint import fingerprint_of
from ..identity import Identity
from ..leased import LeaseAttempt
from ..options import Options
from ..problem import Problem
from ..scope import Scope
from .in_transaction import TransactionAttempt
from .leased_view import LeasedView
from .requests import body_of, keys_of, path_and_query_of
from .responses import response_of_problem


class IdempotencyMiddleware:
    """Makes each request with an `Idempotency-Key` take effect once. See docs/http.md.

    A subclass sets `destination` and `scope`, and any field of `Options`, as class attributes.
    """

    destination: ClassVar[str | None] = None
    scope: ClassVar[Scope | None] = None
    using: ClassVar[str] = "default"
    """The alias of the connection."""

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._get_response = get_response
        self._options = self._configured()
        self._open = BlockingTransactions(connections[self._setting("using", "default")])

    def __call__(self, request: HttpRequest) -> Any:
        method: str = request.method or ""
        try:
            message_id = self._options.message_id(method, keys_of(request), request)
            if message_id is None:
                return self._get_response(request)
            return self._protected(message_id, method, request)
        except Problem as problem:
            return response_of_problem(problem)

    def _protected(self, message_id: str, method: str, request: HttpRequest) -> Any:
        options = self._options
        body = body_of(request, options)
        fingerprint = fingerprint_of(method, path_and_query_of(request), body)
        identity = Identity(message_id, options.destination, fingerprint)
        if options.is_leased:
            view = LeasedView(options, identity, self._get_response, request)
            return finished(LeaseAttempt(options, self._open, identity, view).response())
        attempt = TransactionAttempt(options, self._open, identity, self._get_response)
        return finished(attempt.response(request))

    def _configured(self) -> Options:
        names = [field.name for field in fields(Options)]
        given = {name: self._setting(name, None) for name in names}
        for name in ("destination", "scope"):
            if given[name] is None:
                raise ImproperlyConfigured(
                    f"set {name!r} in a subclass of IdempotencyMiddleware, or "
                    f"{name.upper()!r} in the setting IDEM_HTTP"
                )
        try:
            return Options(**{name: value for name, value in given.items() if value is not None})
        except (TypeError, ValueError) as error:
            raise ImproperlyConfigured(str(error)) from error

    def _setting(self, name: str, default: Any) -> Any:
        # A function that is a class attribute is not bound to the middleware.
        for base in type(self).__mro__:
            value = vars(base).get(name)
            if value is not None and base is not IdempotencyMiddleware:
                return value.__func__ if isinstance(value, staticmethod) else value
        value = getattr(settings, "IDEM_HTTP", {}).get(name.upper(), default)
        is_path = isinstance(value, str) and name in ("scope", "keep_headers")
        return import_string(value) if is_path else value
