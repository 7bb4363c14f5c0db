"""Reads requests of Django."""

from __future__ import annotations

import re
from urllib.parse import quote

from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest
from django.http.request import RawPostDataException, UnreadablePostError

from ..fingerprint import UNQUOTED
from ..options import Options, content_length_of
from ..problem import Kind, Problem, log

_AUTHORITY = re.compile(r"[^/?]*://[^/?]*")


def keys_of(request: HttpRequest) -> list[str]:
    """Returns the values of the headers `Idempotency-Key`, which WSGI joins to one."""
    key = request.META.get("HTTP_IDEMPOTENCY_KEY")
    return [] if key is None else [key]


def path_and_query_of(request: HttpRequest) -> bytes:
    """Returns the path and the query as the client has sent them, if the server knows them."""
    raw = request.META.get("RAW_URI") or request.META.get("REQUEST_URI")
    if raw:
        # A path can begin with two slashes, so only the absolute form has an authority.
        target = raw if raw.startswith("/") else _AUTHORITY.sub("", raw, count=1)
        path, _, query = target.partition("?")
    else:
        path = quote(request.path, safe=UNQUOTED)
        query = request.META.get("QUERY_STRING", "")
    return (f"{path}?{query}" if query else path).encode("latin-1", "replace")


def body_of(request: HttpRequest, options: Options) -> bytes:
    """Reads the body. Raises Problem for a body that is incomplete or too large."""
    length = content_length_of(request.META.get("CONTENT_LENGTH") or "0")
    options.check_request_size(length)
    try:
        body: bytes = request.body
    except RequestDataTooBig as error:
        raise Problem(Kind.REQUEST_TOO_LARGE) from error
    except UnreadablePostError as error:
        raise Problem(Kind.UNREADABLE_REQUEST) from error
    except RawPostDataException as error:
        log.exception("a middleware above IdempotencyMiddleware reads request.POST")
        raise Problem(
            Kind.FAILED, "the service has read the body before it looked at the key"
        ) from error
    if len(body) < length:
        raise Problem(Kind.UNREADABLE_REQUEST)
    options.check_request_size(len(body))
    return body
