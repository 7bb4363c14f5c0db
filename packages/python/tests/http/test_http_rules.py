"""Rules without I/O. The other languages read the same cases."""

from __future__ import annotations

import asyncio
import base64
import importlib
import json
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from idem_pg import IdemError
from idem_pg.http import retry
from idem_pg.http.fingerprint import fingerprint_of
from idem_pg.http.key import key_of
from idem_pg.http.options import Options, keeps_writes
from idem_pg.http.problem import Kind, Problem, problem_of
from idem_pg.http.recorded import Recorded
from idem_pg.http.request_head import RequestHead
from idem_pg.http.response import Response
from idem_pg.http.routes import matcher_of
from idem_pg.http.scope import Scope

OPTIONS = Options("orders", Scope.single_tenant(), applies_to=("/*",))
FOLDER = Path(__file__).parents[4] / "tests/spec/http"


def cases(file: str) -> Any:
    """Reads the cases that the middlewares of all languages share."""
    return json.loads((FOLDER / file).read_text())


def problem_kind_of(work: Callable[[], object]) -> Kind:
    with pytest.raises(Problem) as caught:
        work()
    return caught.value.kind


def test_keys_are_those_of_the_specification() -> None:
    keys = cases("keys.json")
    for case in keys["valid"]:
        assert key_of([case["value"]]) == case["key"]
    for value in keys["invalid"]:
        assert problem_kind_of(partial(key_of, [value])) is Kind.BAD_KEY, value
    for case in keys["reasons"]:
        place = f" at index {case['index']}; a key in quotes must be one string"
        with pytest.raises(Problem, match=place):
            key_of([case["value"]])


def test_repeated_header_is_rejected() -> None:
    assert key_of([]) is None
    with pytest.raises(Problem, match="more than once"):
        key_of(["a", "a"])


def test_fingerprints_are_those_of_the_specification() -> None:
    requests = cases("fingerprints.json")["requests"]
    for case in requests:
        found = fingerprint_of(case["method"], case["target"].encode(), case["body"].encode())
        assert found.hex() == case["sha256"], case["target"]
    assert len({case["sha256"] for case in requests}) == len(requests)


def scope_of(caller: str | None) -> Scope:
    return Scope.by(lambda _: caller)


def test_ids_are_those_of_the_specification() -> None:
    ids = cases("ids.json")
    for case in ids["single_tenant"]:
        assert Scope.single_tenant().id_of(None, case["key"]) == case["id"]
    surrogate = {"caller": "\ud800", "key": "k", "problem": "unknown-caller"}
    for case in [*ids["by_caller"], surrogate]:
        id_of = partial(scope_of(case["caller"]).id_of, None, case["key"])
        if "id" in case:
            assert id_of() == case["id"]
        else:
            assert problem_kind_of(id_of).value[0] == case["problem"], case["caller"]


def test_recorded_statuses_are_those_of_the_specification() -> None:
    options, statuses = OPTIONS, cases("statuses.json")
    assert [status for status in statuses["recorded"] if not options.keeps(status)] == []
    assert [status for status in statuses["not_recorded"] if options.keeps(status)] == []
    for name, is_kept in (("writes_are_kept", True), ("writes_are_rolled_back", False)):
        found = [keeps_writes(status, is_requested=False) for status in statuses[name]]
        assert found == [is_kept] * len(found)


def test_middleware_without_a_scope_is_rejected() -> None:
    with pytest.raises(TypeError, match="scope must be"):
        Options("d", None, ("/*",))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"use Scope\.by"):
        Scope()
    with pytest.raises(TypeError, match="needs a function"):
        Scope.by(None)  # type: ignore[arg-type]


def test_records_are_those_of_the_specification() -> None:
    fingerprint = fingerprint_of("GET", b"/", b"")
    options = OPTIONS
    for case in cases("records.json")["responses"]:
        response = case["response"]
        headers = [(name, text) for name, text in response["headers"]]
        body = base64.b64decode(response["body_base64"])
        given = Response(response["status"], headers, body)
        recorded = Recorded.of(fingerprint, given, options.keep_headers)
        stored = json.loads(json.dumps(recorded.to_json()))
        assert stored == {**case["record"], "fingerprint": fingerprint.hex()}
        assert Recorded.from_json(stored) == recorded
        replayed = recorded.replayed(fingerprint)
        assert (replayed.status, replayed.body) == (response["status"], body)
        expected = [(name, text) for name, text in case["record"]["headers"]]
        expected.append(("idempotency-replayed", "true"))
        own = [header for header in replayed.headers if header[0] != "content-length"]
        assert own == expected
        other = fingerprint_of("GET", b"/", b"other")
        assert problem_kind_of(partial(recorded.replayed, other)) is Kind.MISMATCH


def test_unreadable_records_are_those_of_the_specification() -> None:
    records = cases("records.json")
    readable = records["readable"]
    assert Recorded.from_json(readable).status == readable["status"]
    headers = [[text, "1"] for text in records["unsendable_texts"]]
    headers += [["x-a", text] for text in records["unsendable_texts"]]
    changes = [*records["unreadable_members"], *({"headers": [header]} for header in headers)]
    for stored in [*records["unreadable"], *({**readable, **change} for change in changes)]:
        assert problem_kind_of(partial(Recorded.from_json, stored)) is Kind.FAILED, stored
    for name, text in headers:
        response = Response(201, [(name, text)], b"")
        of = partial(Recorded.of, b"", response, lambda _: True)
        assert problem_kind_of(of) is Kind.FAILED


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


@pytest.mark.parametrize(("methods", "error"), [("POST", TypeError), (["post"], ValueError)])
def test_methods_that_protect_nothing_are_errors(methods: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="methods must"):
        Options("orders", Scope.single_tenant(), ("/*",), methods=methods)


@pytest.mark.parametrize(
    ("applies_to", "error"),
    [
        ("/orders", TypeError),
        (None, TypeError),
        ([], ValueError),
        (["orders"], ValueError),
        (["/orders", ""], ValueError),
        ([7], ValueError),
    ],
)
def test_invalid_routes_are_errors(applies_to: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="applies_to"):
        Options("orders", Scope.single_tenant(), applies_to)


@pytest.mark.parametrize(
    ("patterns", "protected", "others"),
    [
        (["/orders"], ["/orders"], ["/orders/", "/orders/7", "/v1/orders", "/Orders", "/"]),
        (["/payments/*"], ["/payments/", "/payments/7", "/payments/7/8"], ["/payments", "/pay"]),
        (["/*/pay", "/a.b"], ["/7/pay", "/7/8/pay", "/a.b"], ["/pay", "/7/pays", "/axb"]),
        (["/*"], ["/", "/admin/login", "/a\nb"], []),
    ],
)
def test_routes_are_those_of_the_patterns(
    patterns: list[str], protected: list[str], others: list[str]
) -> None:
    matches = matcher_of(patterns)
    assert [path for path in protected if not matches(path, None)] == []
    assert [path for path in others if matches(path, None)] == []


def test_path_of_a_mounted_application_has_no_prefix() -> None:
    cases = [
        ("/shop/orders", "/shop", "/orders"),
        ("/shop", "/shop", "/"),
        ("/shopping", "/shop", "/shopping"),
        ("/orders", "/shop", "/orders"),
        ("/orders", "", "/orders"),
    ]
    for path, root_path, expected in cases:
        scope = {"method": "POST", "headers": [], "path": path, "root_path": root_path}
        assert RequestHead(scope).path == expected


def test_predicate_that_returns_no_bool_is_an_error() -> None:
    """Goal: a coroutine, which is true for each request, protects no route by mistake."""

    async def applies_to(_request: Any) -> bool:
        return False

    coroutine: Any = applies_to(None)
    matches = matcher_of(lambda _: coroutine)
    with pytest.raises(TypeError, match="must return True or False"):
        matches("/", None)
    coroutine.close()
