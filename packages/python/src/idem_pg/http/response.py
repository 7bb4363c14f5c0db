"""A complete response, without a framework."""

from __future__ import annotations

from dataclasses import dataclass

Headers = list[tuple[str, str]]

_WITHOUT_BODY = (204, 304)


@dataclass(frozen=True, slots=True)
class Response:
    """A response of a handler or of the middleware."""

    status: int
    headers: Headers
    """In their order, one entry for each value. Each character of a value is one byte."""
    body: bytes


def own_response(status: int, headers: Headers, body: bytes) -> Response:
    """Returns a response of the middleware, with the length of its body."""
    if status not in _WITHOUT_BODY:
        headers = [*headers, ("content-length", str(len(body)))]
    return Response(status, headers, body)
