"""Requests with a valid key, with an invalid key, and without a key."""

from __future__ import annotations

import pytest
from http_fixtures import KINDS, ask, service

pytestmark = pytest.mark.parametrize("kind", KINDS)


def test_missing_required_key_gets_400(kind: str) -> None:
    with service(**KINDS[kind]) as fixture:
        fixture.send(ask("k").without_key()).assert_problem(400, "missing-key")
        assert fixture.runs == 0
        fixture.database.assert_untouched()


def test_request_without_an_optional_key_passes_through(kind: str) -> None:
    with service(**KINDS[kind], required=False) as fixture:
        for run in (1, 2):
            fixture.send(ask("k").without_key()).assert_run(201, run)
        assert (fixture.claims(), fixture.work("k")) == (0, 4)
        first = fixture.send(ask("k"))
        first.assert_run(201, 3)
        fixture.send(ask("k")).assert_replay_of(first)


def test_invalid_key_gets_400(kind: str) -> None:
    with service(**KINDS[kind]) as fixture:
        for bad in ("", '""', '"open', "two words", '"a" "b"', "x" * 256):
            request = ask("k").without_key().with_header("idempotency-key", bad)
            fixture.send(request).assert_problem(400, "bad-key")
        twice = ask("k").with_header("idempotency-key", '"k"')
        fixture.send(twice).assert_problem(400, "bad-key")
        assert fixture.runs == 0
        fixture.database.assert_untouched()


def test_quoted_and_unquoted_key_are_the_same(kind: str) -> None:
    with service(**KINDS[kind]) as fixture:
        first = fixture.send(ask("k"))
        bare = ask("k").without_key().with_header("idempotency-key", "k")
        fixture.send(bare).assert_replay_of(first)


def test_unprotected_methods_pass_through(kind: str) -> None:
    with service(**KINDS[kind]) as fixture:
        for run, method in enumerate(["GET", "PUT", "DELETE", "PUT"], 1):
            fixture.send(ask("k").to(method=method)).assert_run(201, run)
        assert fixture.claims() == 0
    with service(**KINDS[kind], methods=("PUT",)) as fixture:
        first = fixture.send(ask("k").to(method="PUT"))
        first.assert_run(201, 1)
        fixture.send(ask("k").to(method="PUT")).assert_replay_of(first)
        fixture.send(ask("k")).assert_run(201, 2)
        assert fixture.claims() == 1
