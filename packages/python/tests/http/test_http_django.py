"""What only the middleware of Django does. The other tests run for it too: see KINDS."""

from __future__ import annotations

import http.client
import json
import socket

import http_django_app
import pytest
from conftest import until
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.test import RequestFactory
from django.test.utils import override_settings
from http_fixtures import ask, disconnecting, service

from idem_pg.http import Scope
from idem_pg.http.django import IdempotencyMiddleware, request_lease, request_transaction
from idem_pg.http.django.requests import path_and_query_of


@pytest.mark.parametrize("failure", ["x-fail", "x-fail-nested", "x-set-rollback"])
def test_success_without_a_sound_transaction_is_rejected(failure: str) -> None:
    with service(driver="django") as fixture:
        fixture.send(ask("k").with_header(failure)).assert_problem(500, "failed")
        fixture.database.assert_untouched()
        fixture.send(ask("k")).assert_run(201, 2)


def test_stream_that_fails_is_rolled_back() -> None:
    """Goal: the client gets no success for writes that are rolled back."""
    with service(driver="django") as fixture:
        request = ask("k").with_header("x-stream-fails")
        fixture.send(request).assert_problem(500, "failed")
        fixture.database.assert_untouched()
        fixture.send(ask("k")).assert_run(201, 2)


def test_stream_that_fails_releases_the_lease() -> None:
    """Goal: the next request runs at once, and not after the lease."""
    with service(driver="django", mode="lease") as fixture:
        fixture.send(ask("k").with_header("x-stream-fails")).assert_problem(500, "failed")
        assert fixture.claims() == 0
        fixture.send(ask("k")).assert_run(201, 2)


@pytest.mark.parametrize("mode", ["transaction", "lease"])
def test_asynchronous_stream_is_recorded(mode: str) -> None:
    with service(driver="django", mode=mode) as fixture:
        first = fixture.send(ask("k").with_header("x-stream-async").with_header("x-size", "300"))
        first.assert_run(201, 1)
        assert first.body == b"run 1, k" + b"x" * 300
        fixture.send(ask("k")).assert_replay_of(first)
        assert fixture.work("k") == 2


def test_keep_headers_that_fails_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_name: str) -> bool:
        raise KeyError("keep_headers")

    options = http_django_app._options
    changed = {"KEEP_HEADERS": fails}
    monkeypatch.setattr(http_django_app, "_options", lambda config: options(config) | changed)
    with service(driver="django") as fixture:
        fixture.send(ask("k")).assert_problem(500, "failed")
        fixture.database.assert_untouched()


@pytest.mark.parametrize("mode", ["transaction", "lease"])
def test_connection_without_autocommit_is_rejected(mode: str) -> None:
    with service(driver="django", mode=mode, manual_commit=True) as fixture:
        fixture.send(ask("k")).assert_problem(500, "failed")
        assert fixture.runs == 0
        fixture.database.until_quiet()
        fixture.database.assert_untouched()


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ("/orders?a=%20b&c", b"/orders?a=%20b&c"),
        ("//tenant/orders", b"//tenant/orders"),
        ("//[x/orders", b"//[x/orders"),
        ("/to/http://other/orders", b"/to/http://other/orders"),
        ("http://shop/orders?a", b"/orders?a"),
        ("http://shop//orders", b"//orders"),
        ("/orders?", b"/orders"),
    ],
)
def test_path_is_that_of_the_request_line(raw: str, path: bytes) -> None:
    request = HttpRequest()
    request.META["RAW_URI"] = raw
    assert path_and_query_of(request) == path


class Keys(IdempotencyMiddleware):
    destination = "d"
    scope = Scope.single_tenant()
    applies_to = ("/*",)


def problem_of_post(headers: dict[str, str], *, reads_body: bool) -> tuple[int, str]:
    """Returns the status and the detail for a request that reaches no view."""
    request = RequestFactory().post("/", {"a": "b"}, HTTP_IDEMPOTENCY_KEY="k", **headers)
    if reads_body:
        assert request.POST["a"] == "b"
    response = Keys(lambda _: None)(request)
    return response.status_code, json.loads(response.content)["detail"]


def test_body_that_was_read_before_fails_with_a_reason() -> None:
    status, detail = problem_of_post({}, reads_body=True)
    assert status == 500
    assert "has read the body" in detail


def test_content_length_with_too_many_digits_gets_400() -> None:
    assert problem_of_post({"CONTENT_LENGTH": "9" * 5000}, reads_body=False)[0] == 400


def test_client_error_after_a_nested_failure_is_recorded() -> None:
    with service(driver="django") as fixture:
        request = ask("k").with_header("x-fail-nested").with_header("x-status", "402")
        rejected = fixture.send(request)
        rejected.assert_run(402, 1)
        assert fixture.work("k") == 0
        fixture.send(ask("k")).assert_replay_of(rejected)


def test_exception_with_a_status_of_4xx_is_recorded() -> None:
    with service(driver="django") as fixture:
        missing = fixture.send(ask("k").with_header("x-not-found"))
        assert missing.status == 404
        assert (fixture.work("k"), fixture.claims()) == (0, 1)
        fixture.send(ask("k")).assert_replay_of(missing)


def test_failed_function_of_on_commit_keeps_the_response() -> None:
    with service(driver="django") as fixture:
        first = fixture.send(ask("k").with_header("x-hook"))
        first.assert_run(201, 1)
        fixture.send(ask("k")).assert_replay_of(first)
        assert (fixture.work("k"), fixture.claims()) == (2, 1)


def test_disconnect_does_not_stop_the_view() -> None:
    with service(driver="django") as fixture:
        with disconnecting(fixture.port, ask("k").with_header("x-hold")):
            fixture.until_holding(1)
        fixture.release()
        until("the request is committed", lambda: fixture.claims() == 1)
        assert fixture.send(ask("k")).is_replayed
        assert (fixture.work("k"), fixture.runs) == (2, 1)


def test_body_that_ends_early_gets_400() -> None:
    """Goal: the view never works on a part of a body."""
    with service(driver="django") as fixture:
        lines = ["POST /orders HTTP/1.1", "host: tests", "idempotency-key: k"]
        head = "\r\n".join([*lines, "content-length: 100", "", ""])
        with socket.create_connection(("127.0.0.1", fixture.port)) as connection:
            connection.sendall(head.encode() + b"short")
            connection.shutdown(socket.SHUT_WR)
            response = http.client.HTTPResponse(connection)
            response.begin()
            assert response.status == 400
            assert b"urn:idem:unreadable-request" in response.read()
        assert fixture.runs == 0
        fixture.database.assert_untouched()


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"SCOPE": None}, "set 'scope' in a subclass"),
        ({"DESTINATION": None}, "set 'destination' in a subclass"),
        ({"APPLIES_TO": None}, "set 'applies_to' in a subclass"),
        ({"SCOPE": object()}, "scope must be"),
        ({"MODE": "leased"}, "mode must be"),
        ({"APPLIES_TO": ["orders"]}, "begin with a slash"),
    ],
)
def test_incomplete_setting_is_rejected(setting: dict[str, object], reason: str) -> None:
    complete = {"DESTINATION": "d", "SCOPE": Scope.single_tenant(), "APPLIES_TO": ["/*"]}
    changed = override_settings(IDEM_HTTP=complete | setting)
    with changed, pytest.raises(ImproperlyConfigured, match=reason):
        IdempotencyMiddleware(lambda request: None)


def test_unprotected_request_has_no_transaction_and_no_lease() -> None:
    with pytest.raises(LookupError, match="no transaction"):
        request_transaction(HttpRequest())
    with pytest.raises(LookupError, match="no lease"):
        request_lease(HttpRequest())
