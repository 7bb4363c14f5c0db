"""Requests and responses above the size limits."""

from __future__ import annotations

import http.client

import pytest
from http_fixtures import DEADLINE_S, KINDS, MODES, TRANSACTIONS, ask, service


@pytest.mark.parametrize("kind", KINDS)
def test_request_above_the_limit_gets_413(kind: str) -> None:
    with service(**KINDS[kind], request_limit=100) as fixture:
        fixture.send(ask("k").to(body=b"x" * 101)).assert_problem(413, "request-too-large")
        assert fixture.runs == 0
        fixture.database.assert_untouched()
        fixture.send(ask("k").to(body=b"x" * 100)).assert_run(201, 1)


@pytest.mark.parametrize("kind", MODES)
def test_limit_applies_without_a_content_length(kind: str) -> None:
    with service(**KINDS[kind], request_limit=100) as fixture:
        for pieces, status in ((20, 413), (10, 201)):
            connection = http.client.HTTPConnection("127.0.0.1", fixture.port, timeout=DEADLINE_S)
            body = iter([b"ten bytes."] * pieces)
            headers = {"idempotency-key": "chunks"}
            connection.request("POST", "/orders", body, headers, encode_chunked=True)
            assert connection.getresponse().status == status
            connection.close()
        assert (fixture.runs, fixture.work("ten bytes." * 10)) == (1, 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_response_above_the_limit_gets_500(kind: str, is_streamed: bool) -> None:
    """Goal: the client gets no response that cannot be recorded."""
    with service(**KINDS[kind], response_limit=1000) as fixture:
        request = ask("k").with_header("x-stream") if is_streamed else ask("k")
        large = fixture.send(request.with_header("x-size", "1000"))
        large.assert_problem(500, "response-too-large")
        assert fixture.claims() == 0
        if kind in TRANSACTIONS:
            fixture.database.assert_untouched()
        first = fixture.send(request.with_header("x-size", "900"))
        first.assert_run(201, 2)
        assert first.body == b"run 2, k" + b"x" * 900
        fixture.send(request).assert_replay_of(first)
        # The size of a response that is not recorded is not limited.
        failed = ask("failed").with_header("x-size", "5000").with_header("x-status", "503")
        response = fixture.send(failed)
        response.assert_run(503, 3)
        assert len(response.body) > 5000
