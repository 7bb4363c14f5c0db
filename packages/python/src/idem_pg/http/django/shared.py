"""What the middleware shares with the view of a protected request."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from ..leased import RequestLease


class RequestTransaction:
    """The transaction that claims the request and records its response."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.keeps_writes = False

    def keep_writes(self) -> None:
        """Commits the writes of the view also with a status of 4xx."""
        self.keeps_writes = True


def request_transaction(request: HttpRequest) -> RequestTransaction:
    """Returns the transaction of a protected request.

    Raises LookupError if the request is not protected.
    """
    found = getattr(request, "idem", None)
    if isinstance(found, RequestTransaction):
        return found
    raise LookupError("the request has no transaction of an IdempotencyMiddleware")


def request_lease(request: HttpRequest) -> RequestLease:
    """Returns the lease of a protected request. Raises LookupError if it has none."""
    found = getattr(request, "idem", None)
    if isinstance(found, RequestLease):
        return found
    raise LookupError("the request has no lease of an IdempotencyMiddleware")


def keep_writes(request: HttpRequest) -> None:
    """Commits the writes of the view also with a status of 4xx."""
    request_transaction(request).keep_writes()
