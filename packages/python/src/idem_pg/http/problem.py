"""The error responses of the middleware, as `application/problem+json` (RFC 9457)."""

from __future__ import annotations

import enum
import json
import logging

from ..errors import IdemError
from ..executors import reported, translated
from .response import Response, own_response

log = logging.getLogger("idem_pg.http")

_TITLES = {
    400: "Bad Request",
    403: "Forbidden",
    409: "Conflict",
    413: "Payload Too Large",
    422: "Unprocessable Entity",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


_UNREACHABLE = frozenset({"TimeoutError", "PoolTimeout", "InternalClientError"})
"""Errors of pools without a free connection, and of an asyncpg connection that is being closed."""


class Kind(enum.Enum):
    """A kind of problem: the last part of its type, its status and its text."""

    MISSING_KEY = ("missing-key", 400, "the request has no Idempotency-Key header")
    BAD_KEY = ("bad-key", 400, "the Idempotency-Key header is invalid")
    UNKNOWN_CALLER = (
        "unknown-caller",
        403,
        "the caller of the request is not known, and each caller has its own keys",
    )
    KEY_TOO_LONG = ("key-too-long", 400, "the key together with the name of its caller is too long")
    UNREADABLE_REQUEST = ("unreadable-request", 400, "the body of the request could not be read")
    REQUEST_TOO_LARGE = ("request-too-large", 413, "the body of the request is too large")
    IN_PROGRESS = ("in-progress", 409, "a request with this key is being processed")
    NOT_RECORDED = (
        "not-recorded",
        409,
        "this key was used before, but no response to it is recorded",
    )
    MISMATCH = (
        "mismatch",
        422,
        "this key was used before for another request: another method, path or body",
    )
    RESPONSE_TOO_LARGE = (
        "response-too-large",
        500,
        "the response is too large to be recorded, so nothing was stored",
    )
    EXHAUSTED = (
        "exhausted",
        500,
        "the request was not processed: its attempts are used up, and none has completed",
    )
    FAILED = ("failed", 500, "the request could not be processed")
    UNAVAILABLE = (
        "unavailable",
        503,
        "the request could not be processed now; send it again with the same key",
    )
    IN_DOUBT = (
        "in-doubt",
        503,
        "it is not known whether the request took effect; "
        "send it again with the same key to find out",
    )

    @property
    def is_transient(self) -> bool:
        """Whether the same request may soon succeed. The response then has Retry-After."""
        return self in (Kind.IN_PROGRESS, Kind.UNAVAILABLE, Kind.IN_DOUBT)


class Problem(Exception):  # noqa: N818
    """The reason why a request gets an error response of the middleware."""

    def __init__(self, kind: Kind, detail: str | None = None) -> None:
        self.name, self.status, text = kind.value
        super().__init__(detail or text)
        self.kind = kind

    def after_work(self) -> Problem:
        """Converts a problem that occurs after a leased handler has run.

        The handler may have had an effect outside of the database.
        """
        is_unknown = self.kind in (Kind.UNAVAILABLE, Kind.FAILED)
        return Problem(Kind.IN_DOUBT) if is_unknown else self

    def response(self) -> Response:
        headers = [("content-type", "application/problem+json")]
        if self.kind.is_transient:
            headers.append(("retry-after", "1"))
        problem = {
            "type": f"urn:idem:{self.name}",
            "title": _TITLES[self.status],
            "status": self.status,
            "detail": str(self),
        }
        return own_response(self.status, headers, json.dumps(problem).encode())


def problem_of(error: Exception, *, is_committing: bool = False) -> Problem:
    """Converts an error of the database, and logs it. The client does not get its text."""
    if isinstance(error, Problem):
        return error
    log.warning("a request with an idempotency key was not processed: %s", error, exc_info=error)
    if is_committing:
        # After an ERROR the transaction is certainly rolled back. All else leaves it unknown.
        if reported(error, "severity_en", "severity_nonlocalized") != "ERROR":
            return Problem(Kind.IN_DOUBT)
    elif is_unreachable(error):
        return Problem(Kind.UNAVAILABLE)
    found = translated(error)
    if isinstance(found, IdemError) and (found.retryable or found.sqlstate == "25006"):
        return Problem(Kind.UNAVAILABLE)
    return Problem(Kind.FAILED)


def is_unreachable(error: Exception) -> bool:
    """Returns whether the connection is lost or could not be opened."""
    found = translated(error)
    if isinstance(found, IdemError):
        return found.is_connection_lost
    return isinstance(found, OSError) or type(found).__name__ in _UNREACHABLE
