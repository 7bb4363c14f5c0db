"""A decorator for one view of Django."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction
from django.db import transaction
from django.http import HttpRequest

from ..scope import Scope
from .protection import Protection, options_of

V = TypeVar("V", bound=Callable[..., Any])


def idempotent_view(
    destination: str, scope: Scope, *, using: str = "default", **options: Any
) -> Callable[[V], V]:
    """Makes each request to one view take effect once, without a middleware. See docs/http.md.

    `using` is the alias of the connection, and `options` are fields of `Options`. The decorator
    protects the view under each path. Put it above decorators that must not run again for a
    repeated request, and below those that authenticate. A view that raises is not recorded.
    `ATOMIC_REQUESTS` of this connection does not apply to the view.
    """
    given = {"destination": destination, "scope": scope, "applies_to": ("/*",), **options}
    protection = Protection(options_of(given), using)

    def decorate(view: V) -> V:
        if iscoroutinefunction(view):
            raise TypeError("idempotent_view needs a view that is no coroutine function")

        @functools.wraps(view)
        def protected(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            def rendered(request: HttpRequest) -> Any:
                response = view(request, *args, **kwargs)
                # Django renders later, but the record needs the content.
                return response.render() if hasattr(response, "render") else response

            return protection.response(request, rendered)

        return transaction.non_atomic_requests(using)(protected)  # type: ignore[no-any-return]

    return decorate
