"""A request with a key takes effect once."""

from __future__ import annotations

import uuid

import pytest
from http_fixtures import KINDS, MODES, OTHER_DRIVERS, Ask, Fixture, ask, service, service_on


def assert_once(fixture: Fixture) -> None:
    """Repeats a request. It gets the recorded response, and its handler does not run again."""
    key = str(uuid.uuid4())
    first = fixture.send(ask(key))
    first.assert_run(201, 1)
    for _ in range(3):
        fixture.send(ask(key)).assert_replay_of(first)
    assert fixture.runs == 1
    assert (fixture.work(key), fixture.claims()) == (2, 1)
    fixture.send(ask("another")).assert_run(201, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_repeated_request_gets_the_recorded_response(kind: str) -> None:
    with service(**KINDS[kind]) as fixture:
        assert_once(fixture)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("driver", OTHER_DRIVERS)
def test_other_kinds_of_connections_record_the_response(mode: str, driver: str) -> None:
    with service(mode=mode, driver=driver) as fixture:
        assert_once(fixture)


@pytest.mark.parametrize("mode", MODES)
def test_fastapi_replays_the_recorded_response(mode: str) -> None:
    with service(mode=mode, framework="fastapi") as fixture:
        assert_once(fixture)


@pytest.mark.parametrize("kind", KINDS)
def test_concurrent_request_with_the_key_gets_409_and_retry_after(kind: str) -> None:
    with service(**KINDS[kind]) as fixture:
        first = fixture.start(ask("held").with_header("x-hold"))
        fixture.until_holding(1)
        second = fixture.send(ask("held"))
        second.assert_problem(409, "in-progress")
        assert second.header("retry-after") == "1"
        fixture.release()
        first.result().assert_run(201, 1)
        fixture.send(ask("held")).assert_replay_of(first.result())
        assert (fixture.runs, fixture.work("held")) == (1, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_concurrent_requests_run_one_handler(kind: str) -> None:
    with service(**KINDS[kind]) as fixture:
        for number in range(1, 6):
            key = f"race-{number}"
            sent = [fixture.start(ask(key)) for _ in range(6)]
            responses = [future.result() for future in sent]
            new = [found for found in responses if found.status == 201 and not found.is_replayed]
            assert len(new) == 1, responses
            new[0].assert_run(201, number)
            for response in responses:
                if response.status != 201:
                    response.assert_problem(409, "in-progress")
                elif response is not new[0]:
                    response.assert_replay_of(new[0])
            assert (fixture.work(key), fixture.runs) == (2, number)


OTHERS: dict[str, Ask] = {
    "body": ask("k").to(body=b"another body"),
    "path": ask("k").to(path="/others"),
    "query": ask("k").to(path="/orders?dry=1"),
    "method": ask("k").to(method="PATCH"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_other_request_with_the_same_key_gets_422(kind: str) -> None:
    with service(**KINDS[kind]) as fixture:
        fixture.send(ask("k")).assert_run(201, 1)
        for other in OTHERS.values():
            fixture.send(other).assert_problem(422, "mismatch")
        assert (fixture.runs, fixture.claims()) == (1, 1)


@pytest.mark.parametrize("mode", MODES)
def test_other_service_replays_the_recorded_response(mode: str) -> None:
    """Goal: the record is only in the database, so a second service with another driver has it."""
    with service(mode=mode, driver="asyncpg") as fixture:
        first = fixture.send(ask("restart"))
        config = fixture.database.config(mode=mode, driver="psycopg")
        with service_on(fixture.database, config) as second:
            second.send(ask("restart")).assert_replay_of(first)
            assert second.runs == 0


@pytest.mark.parametrize("kind", KINDS)
def test_each_caller_has_its_own_keys(kind: str) -> None:
    with service(**KINDS[kind], by_tenant=True) as fixture:
        of_a, of_b = ask("k").with_header("x-tenant", "a"), ask("k").with_header("x-tenant", "b")
        first = fixture.send(of_a)
        first.assert_run(201, 1)
        fixture.send(of_b).assert_run(201, 2)
        fixture.send(of_a).assert_replay_of(first)
        # "a" with "b:k" and "a:b" with "k" are different.
        fixture.send(ask("b:k").with_header("x-tenant", "a")).assert_run(201, 3)
        fixture.send(ask("k").with_header("x-tenant", "a:b")).assert_run(201, 4)
        fixture.send(ask("k")).assert_problem(403, "unknown-caller")
        assert (fixture.runs, fixture.claims()) == (4, 4)
        ids = fixture.database.value(
            "SELECT array_agg(id ORDER BY id) FROM idem.inbox "
            f"WHERE destination = '{fixture.database.destination}'"
        )
        assert ids == ["by:1:a:b:k", "by:1:a:k", "by:1:b:k", "by:3:a:b:k"]


@pytest.mark.parametrize("kind", KINDS)
def test_caller_and_key_that_are_too_long_get_400(kind: str) -> None:
    with service(**KINDS[kind], by_tenant=True) as fixture:
        long = ask("x" * 255).with_header("x-tenant", "t" * 800)
        fixture.send(long).assert_problem(400, "key-too-long")
        fixture.database.assert_untouched()


@pytest.mark.parametrize("mode", MODES)
def test_middlewares_with_different_scopes_share_no_keys(mode: str) -> None:
    """Invariant: a service without tenants never replays a response of a tenant."""
    with service(mode=mode, by_tenant=True) as fixture:
        config = fixture.database.config(mode=mode)
        with service_on(fixture.database, config) as shared:
            cases = [("first", "5:first:k"), ("second", "by:6:second:k")]
            for tenant, key in cases:
                own = fixture.send(ask("k").with_header("x-tenant", tenant))
                other = shared.send(ask(key).to(body=b"k"))
                assert (own.status, other.status) == (201, 201)
                assert not other.is_replayed


@pytest.mark.parametrize("kind", KINDS)
def test_key_claimed_without_a_response_gets_409(kind: str) -> None:
    with service(**KINDS[kind]) as fixture:
        claim = f"SELECT idem_try_claim('all:k', '{fixture.database.destination}')"
        with fixture.database.connection.transaction():
            assert fixture.database.value(claim)
        fixture.send(ask("k")).assert_problem(409, "not-recorded")
        assert fixture.runs == 0
