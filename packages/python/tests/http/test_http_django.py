"""What only the middleware of Django does. The other tests run for it too: see KINDS."""

from __future__ import annotations

import http.client
import socket

import pytest
from conftest import until
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.test.utils import override_settings
from http_fixtures import ask, disconnecting, service

from idem_pg.http import Scope
from idem_pg.http.django import IdempotencyMiddleware, request_transaction


@pytest.mark.parametrize("failure", ["x-fail", "x-fail-nested", "x-set-rollback"])
def test_success_without_a_sound_transaction_is_rejected(failure: str) -> None:
    with service(driver="django") as fixture:
        fixture.send(ask("k").with_header(failure)).assert_problem(500, "failed")
        fixture.database.assert_untouched()
        fixture.send(ask("k")).assert_run(201, 2)


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
        ({"DESTINATION": "d"}, "set 'scope' in a subclass"),
        ({"SCOPE": Scope.single_tenant()}, "set 'destination' in a subclass"),
        ({"DESTINATION": "d", "SCOPE": object()}, "scope must be"),
    ],
)
def test_incomplete_setting_is_rejected(setting: dict[str, object], reason: str) -> None:
    with override_settings(IDEM_HTTP=setting), pytest.raises(ImproperlyConfigured, match=reason):
        IdempotencyMiddleware(lambda request: None)


def test_unprotected_request_has_no_transaction() -> None:
    with pytest.raises(LookupError):
        request_transaction(HttpRequest())
