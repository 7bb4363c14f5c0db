"""Conversions between responses of Django, recorded responses and problems."""

from __future__ import annotations

from typing import Any

from asgiref.sync import async_to_sync
from django.http import HttpResponse

from ..identity import Identity
from ..options import Options
from ..problem import Kind, Problem
from ..recorded import Headers, Recorded

_WITHOUT_BODY = (204, 304)


def read_body(response: Any, limit: int) -> bytes:
    """Returns the body. Collects a stream, so that the response can still be sent."""
    if response.streaming:
        body = _collected(response, limit)
        response.streaming_content = [body]
        return body
    content: bytes = response.content
    _check_size(len(content), limit)
    return content


def recorded_of(options: Options, identity: Identity, response: Any, body: bytes) -> Recorded:
    cookies = [("set-cookie", cookie.OutputString()) for cookie in response.cookies.values()]
    headers = [*response.items(), *cookies]
    return Recorded.of(
        identity.fingerprint, response.status_code, headers, options.keep_headers, body
    )


def response_of(recorded: Recorded) -> HttpResponse:
    return _response(recorded.status, recorded.replayed_headers(), recorded.body)


def response_of_problem(problem: Problem) -> HttpResponse:
    return _response(problem.status, problem.headers(), problem.body())


def _collected(response: Any, limit: int) -> bytes:
    body = bytearray()

    def add(chunk: bytes) -> None:
        body.extend(chunk)
        _check_size(len(body), limit)

    async def add_all() -> None:
        async for chunk in response.streaming_content:
            add(chunk)

    if response.is_async:
        async_to_sync(add_all)()
    else:
        for chunk in response.streaming_content:
            add(chunk)
    return bytes(body)


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise Problem(Kind.RESPONSE_TOO_LARGE)


def _response(status: int, headers: Headers, body: bytes) -> HttpResponse:
    response = HttpResponse(body, status=status)
    del response.headers["content-type"]
    if status not in _WITHOUT_BODY:
        response.headers["content-length"] = str(len(body))
    for name, value in headers:
        # HttpResponse has one value for each header. All headers but cookies can be joined.
        if name == "set-cookie":
            response.cookies.load(value)
        elif name in response.headers:
            response.headers[name] = f"{response.headers[name]}, {value}"
        else:
            response.headers[name] = value
    return response
