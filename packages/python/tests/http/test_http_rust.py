"""Responses that the crate `idem-http` has recorded, and the form of those of this package."""

from __future__ import annotations

import hashlib
import json

import pytest
from http_fixtures import KINDS, MODES, Database, ask, service

FINGERPRINT = hashlib.sha256(b"POST\0/orders?a=%20b&c\0k").hexdigest()
REQUEST = ask("k").to(path="/orders?a=%20b&c")
RESPONSE = {
    "fingerprint": FINGERPRINT,
    "status": 402,
    "headers": [["content-type", "text/plain"], ["x-two", "1"], ["x-two", "2"], ["x-b", "\xfc"]],
    "body_base64": "AP9ydXN0",
}


def record_as_rust(found: Database, message_id: str, *, with_claim: bool) -> None:
    """Records a response with the statements of the crate `idem-http`."""
    call = (message_id, found.destination, "http-response")
    with found.connection.transaction():
        if with_claim:
            found.connection.execute(
                "SELECT outcome FROM idem_claim(%s, %s, false, decode(%s, 'hex'))",
                (*call[:2], FINGERPRINT),
            )
        begun = json.dumps({"fingerprint": FINGERPRINT})
        found.connection.execute("SELECT * FROM idem_begin_call(%s, %s, %s, %s)", (*call, begun))
        response = json.dumps(RESPONSE)
        found.connection.execute("SELECT idem_finish_call(%s, %s, %s, %s)", (*call, response))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by_tenant", [False, True])
def test_response_recorded_by_rust_is_replayed(kind: str, by_tenant: bool) -> None:
    with service(**KINDS[kind], by_tenant=by_tenant) as fixture:
        request = REQUEST.with_header("x-tenant", "acme!") if by_tenant else REQUEST
        message_id = "by:5:acme!:k" if by_tenant else "all:k"
        record_as_rust(fixture.database, message_id, with_claim=True)
        replayed = fixture.send(request)
        assert (replayed.status, replayed.body) == (402, b"\0\xffrust")
        assert replayed.is_replayed
        two = [value for name, value in replayed.headers if name == "x-two"]
        # A response of Django has one value for each header.
        assert two == (["1, 2"] if "django" in kind else ["1", "2"])
        assert replayed.header("x-b") == "\xfc"
        other = fixture.send(request.to(path="/orders?a=+b&c"))
        other.assert_problem(422, "mismatch")
        assert fixture.runs == 0


@pytest.mark.parametrize("mode", MODES)
def test_recorded_response_has_the_form_of_rust(mode: str) -> None:
    with service(mode=mode) as fixture:
        first = fixture.send(REQUEST)
        destination = fixture.database.destination
        stored = fixture.database.value(
            f"SELECT response FROM idem_calls('all:k', '{destination}') "
            "WHERE step = 'http-response' AND state = 'done'"
        )
        assert stored == {
            "fingerprint": FINGERPRINT,
            "status": 201,
            "headers": [
                ["x-run", "1"],
                ["x-charges", "0"],
                ["x-other", "kept"],
                ["content-type", "text/plain"],
            ],
            "body_base64": "cnVuIDEsIGs=",
        }
        assert first.body == b"run 1, k"
        # idem_begin_call accepts the same request only: 23000 for another one.
        begin = (
            f"SELECT state::text FROM idem_begin_call('all:k', '{destination}', 'http-response', "
            f"""'{{"fingerprint": "{FINGERPRINT}"}}')"""
        )
        assert fixture.database.value(begin) == "done"
        claim = (
            f"SELECT outcome::text FROM idem_claim('all:k', '{destination}', false, "
            f"decode('{FINGERPRINT}', 'hex'))"
        )
        with fixture.database.connection.transaction():
            assert fixture.database.value(claim) == "duplicate"
