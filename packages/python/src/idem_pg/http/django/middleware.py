"""The middleware class of Django, and its settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, ClassVar

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.utils.module_loading import import_string

from ..options import Options
from ..routes import AppliesTo
from ..scope import Scope
from .protection import Protection, options_of


class IdempotencyMiddleware:
    """Makes each request with an `Idempotency-Key` take effect once. See docs/http.md.

    A subclass sets `destination`, `scope` and `applies_to`, and any other field of `Options`, as
    class attributes. MIDDLEWARE can name several, for different routes.
    """

    destination: ClassVar[str | None] = None
    scope: ClassVar[Scope | None] = None
    applies_to: ClassVar[AppliesTo | None] = None
    using: ClassVar[str] = "default"
    """The alias of the connection."""

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._get_response = get_response
        self._protection = Protection(self._configured(), self._setting("using", "default"))

    def __call__(self, request: HttpRequest) -> Any:
        return self._protection.response(request, self._get_response)

    def process_request(self, _request: HttpRequest) -> None:
        """Fails: only `decorator_from_middleware` calls it, which does not call the middleware."""
        raise ImproperlyConfigured(
            "decorator_from_middleware does not work here: decorate the view with idempotent_view"
        )

    def _configured(self) -> Options:
        names = [field.name for field in fields(Options)]
        given = {name: self._setting(name, None) for name in names}
        for name in ("destination", "scope", "applies_to"):
            if given[name] is None:
                raise ImproperlyConfigured(
                    f"set {name!r} in a subclass of IdempotencyMiddleware, or "
                    f"{name.upper()!r} in the setting IDEM_HTTP"
                )
        return options_of({name: value for name, value in given.items() if value is not None})

    def _setting(self, name: str, default: Any) -> Any:
        # A function that is a class attribute is not bound to the middleware.
        for base in type(self).__mro__:
            value = vars(base).get(name)
            if value is not None and base is not IdempotencyMiddleware:
                return value.__func__ if isinstance(value, staticmethod) else value
        value = getattr(settings, "IDEM_HTTP", {}).get(name.upper(), default)
        is_name = isinstance(value, str) and name in ("scope", "keep_headers", "applies_to")
        return import_string(value) if is_name and not value.startswith("/") else value
