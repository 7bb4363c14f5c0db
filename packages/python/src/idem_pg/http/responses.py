"""Conversions between ASGI responses, recorded responses and problems."""

from __future__ import annotations

from .application import Response
from .identity import Identity
from .options import Options
from .problem import Problem
from .recorded import Headers, Recorded

_WITHOUT_BODY = (204, 304)


def recorded_of(options: Options, identity: Identity, response: Response) -> Recorded:
    headers = [
        (name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers
    ]
    return Recorded.of(
        identity.fingerprint, response.status, headers, options.keep_headers, response.body
    )


def response_of(recorded: Recorded) -> Response:
    return _response(recorded.status, recorded.replayed_headers(), recorded.body)


def response_of_problem(problem: Problem) -> Response:
    return _response(problem.status, problem.headers(), problem.body())


def _response(status: int, headers: Headers, body: bytes) -> Response:
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    if status not in _WITHOUT_BODY:
        raw.append((b"content-length", str(len(body)).encode()))
    return Response(status, raw, body)
