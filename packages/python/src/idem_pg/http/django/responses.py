"""Conversions of the responses of Django."""

from __future__ import annotations

from typing import Any

from asgiref.sync import async_to_sync
from django.http import HttpResponse

from ..problem import Kind, Problem
from ..response import Headers, Response


def read_body(response: Any, limit: int) -> bytes:
    """Returns the body. Collects a stream, so that the response can still be sent."""
    if response.streaming:
        body = _collected(response, limit)
        response.streaming_content = [body]
        return body
    content: bytes = response.content
    _check_size(len(content), limit)
    return content


def headers_of(response: Any) -> Headers:
    cookies = [("set-cookie", cookie.OutputString()) for cookie in response.cookies.values()]
    return [*response.items(), *cookies]


def http_response_of(own: Response) -> HttpResponse:
    """Converts a response of the middleware."""
    response = HttpResponse(own.body, status=own.status)
    del response.headers["content-type"]
    for name, value in own.headers:
        # HttpResponse has one value for each header. All headers but cookies can be joined.
        if name == "set-cookie":
            response.cookies.load(value)
        elif name in response.headers:
            response.headers[name] = f"{response.headers[name]}, {value}"
        else:
            response.headers[name] = value
    return response


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
