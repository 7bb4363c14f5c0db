"""Rules without I/O: the same cases as the unit tests of the crate `idem-http`."""

from __future__ import annotations

import asyncio
import importlib
import json
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest

from idem_pg import IdemError
from idem_pg.http import retry
from idem_pg.http.fingerprint import fingerprint_of
from idem_pg.http.key import key_of
from idem_pg.http.options import Options
from idem_pg.http.problem import Kind, Problem, problem_of, whole_seconds
from idem_pg.http.recorded import Recorded, replay
from idem_pg.http.request_head import RequestHead
from idem_pg.http.scope import Scope

BAD_KEYS = [
    "",
    '""',
    '"open',
    '"a" b"',
    '"a", "b"',
    r'"a\b"',
    '"a\\',
    "a b",
    "a, b",
    "a;b",
    'a"b',
    "a\\b",
    "\xe4",
    '"a\tb"',
    '"a\x7f"',
    '"a";"',
    '"a";Version=1',
    '"a";v=',
    '"a";v=1.2345',
    '"a";v=1234567890123456',
    '"a";v=?2',
    '"a";v="open',
    '"a" ;v=1',
    '"a"\t;',
]


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ('"8e03978e-40d5-43dd-bc93-6894a57f9324"', "8e03978e-40d5-43dd-bc93-6894a57f9324"),
        (r'  "a \"quoted\" \\ one" ', r'a "quoted" \ one'),
        ('"a";version=1', "a"),
        ('"a"; v=1.5;w;*x=?1; y="s";z=tok/en:1;b=:aGk=:;d=@12;e=%"f%c3%bc"  ', "a"),
        ("8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
        ("Zm9v+/==", "Zm9v+/=="),
        ("\tbare ", "bare"),
        ("x" * 255, "x" * 255),
    ],
)
def test_valid_key_is_parsed(value: str, key: str) -> None:
    assert key_of([value]) == key


@pytest.mark.parametrize("value", [*BAD_KEYS, "x" * 256, '"' + "x" * 256 + '"'])
def test_invalid_key_is_rejected(value: str) -> None:
    with pytest.raises(Problem) as caught:
        key_of([value])
    assert caught.value.kind is Kind.BAD_KEY


@pytest.mark.parametrize(
    ("value", "index"), [('"open', 5), (r'"a\b"', 3), ('"a\tb"', 2), ('"a" b"', 4)]
)
def test_reason_says_what_is_wrong_and_where(value: str, index: int) -> None:
    with pytest.raises(Problem, match=f" at index {index}; a key in quotes must be one string"):
        key_of([value])


def test_repeated_header_is_rejected() -> None:
    assert key_of([]) is None
    with pytest.raises(Problem, match="more than once"):
        key_of(["a", "a"])


def test_fingerprint_covers_method_path_query_and_body() -> None:
    first = fingerprint_of("POST", b"/orders?a=1", b"{}")
    # printf 'POST\\0/orders?a=1\\0{}' | sha256sum
    assert first.hex() == "13ca9e2d2cde37fdbb4a9efec2a25ac60d9edcf39818510eeca7d15c57b3c7a5"
    others = [
        fingerprint_of("PATCH", b"/orders?a=1", b"{}"),
        fingerprint_of("POST", b"/order?a=1", b"{}"),
        fingerprint_of("POST", b"/orders?a=2", b"{}"),
        fingerprint_of("POST", b"/orders", b"{}"),
        fingerprint_of("POST", b"/orders?a=1", b"{ }"),
    ]
    assert first not in others


def test_id_has_the_form_of_the_rust_layer() -> None:
    assert Scope.single_tenant().id_of(None, "k") == "all:k"
    assert Scope.by(lambda _: "é:").id_of(None, "k") == "by:3:é::k"
    callers: list[str | None] = [None, "", "a\0b", "\ud800"]
    for caller in callers:
        with pytest.raises(Problem) as caught:
            Scope.by({None: caller}.get).id_of(None, "k")
        assert caught.value.kind is Kind.UNKNOWN_CALLER


def test_middleware_without_a_scope_is_rejected() -> None:
    with pytest.raises(TypeError, match="scope must be"):
        Options("d", None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"use Scope\.by"):
        Scope()
    with pytest.raises(TypeError, match="needs a function"):
        Scope.by(None)  # type: ignore[arg-type]


def test_replayed_response_is_identical() -> None:
    headers = [
        ("X-Two", "first"),
        ("x-two", "second"),
        ("x-bytes", "\xfc\xff"),
        ("x-secret", "not kept"),
        ("connection", "close, X-Hop"),
        ("x-hop", "1"),
        ("date", "now"),
        ("content-length", "7"),
        ("transfer-encoding", "chunked"),
        ("keep-alive", "1"),
    ]
    fingerprint = fingerprint_of("GET", b"/", b"")
    recorded = Recorded.of(
        fingerprint, 201, headers, lambda name: name != "x-secret", b"\0\xffbytes"
    )
    stored = json.loads(json.dumps(recorded.to_json()))
    assert stored == {
        "fingerprint": fingerprint.hex(),
        "status": 201,
        "headers": [["x-two", "first"], ["x-two", "second"], ["x-bytes", "\xfc\xff"]],
        "body_base64": "AP9ieXRlcw==",
    }
    assert replay(Recorded.from_json(stored), fingerprint) == recorded
    with pytest.raises(Problem) as caught:
        replay(recorded, fingerprint_of("GET", b"/", b"other"))
    assert caught.value.kind is Kind.MISMATCH


@pytest.mark.parametrize("stored", [None, {}, {"fingerprint": "", "status": 1, "headers": 1}])
def test_unreadable_record_is_a_failure(stored: object) -> None:
    with pytest.raises(Problem) as caught:
        Recorded.from_json(stored)
    assert caught.value.kind is Kind.FAILED


@pytest.mark.parametrize("text", ["a\r\nb", "a\nb", "a\0", "\u0100"])
@pytest.mark.parametrize("is_name", [False, True])
def test_header_that_cannot_be_sent_is_a_failure(text: str, is_name: bool) -> None:
    header = (text, "1") if is_name else ("x-a", text)
    with pytest.raises(Problem) as caught:
        Recorded.of(b"", 201, [header], lambda _: True, b"")
    assert caught.value.kind is Kind.FAILED
    stored = {"fingerprint": "", "status": 201, "headers": [header], "body_base64": ""}
    with pytest.raises(Problem) as caught:
        Recorded.from_json(stored)
    assert caught.value.kind is Kind.FAILED


def test_path_without_its_raw_form_is_quoted() -> None:
    paths = ["/a b", "/a%20b"]
    heads = [RequestHead({"method": "POST", "headers": [], "path": path}) for path in paths]
    assert [head.path_and_query for head in heads] == [b"/a%20b", b"/a%2520b"]


def test_read_only_server_is_unavailable() -> None:
    """After a switchover, an old primary is read-only until the clients use the new one."""
    assert problem_of(IdemError("read-only", "25006", None)).kind is Kind.UNAVAILABLE
    assert problem_of(IdemError("other", "25001", None)).kind is Kind.FAILED


def test_problem_after_leased_work_is_in_doubt() -> None:
    kinds = [Kind.UNAVAILABLE, Kind.FAILED, Kind.MISMATCH]
    after = [Problem(kind).after_work().kind for kind in kinds]
    assert after == [Kind.IN_DOUBT, Kind.IN_DOUBT, Kind.MISMATCH]


def test_retries_end_after_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # The package exports a function with the name of the module.
    module = importlib.import_module("idem_pg.transactions")
    monkeypatch.setattr(module, "retry_delays", lambda: iter([0.001, 0.001, 0.0]))
    attempts = 0

    async def attempt() -> None:
        nonlocal attempts
        attempts += 1
        raise IdemError("lost", None, None)

    for window, expected in ((30.0, 3), (0.0, 1)):
        monkeypatch.setattr(retry, "RETRY_FOR_S", window)
        attempts = 0
        with pytest.raises(IdemError):
            asyncio.run(module.retried(nullcontext, attempt, retry.soon()))
        assert attempts == expected


def test_retry_after_is_in_whole_seconds() -> None:
    assert whole_seconds(timedelta()) == 1
    assert whole_seconds(timedelta(milliseconds=1001)) == 2
    assert whole_seconds(timedelta(seconds=30)) == 30


@pytest.mark.parametrize(("methods", "error"), [("POST", TypeError), (["post"], ValueError)])
def test_methods_that_protect_nothing_are_errors(methods: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="methods must"):
        Options("orders", Scope.single_tenant(), methods=methods)
