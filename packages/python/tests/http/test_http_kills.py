"""A process that is killed at each step of a request, which is then repeated.

Invariant: the request takes effect once, and a client that has got a response has got it after its
commit.
"""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from conftest import until
from http_config import Config
from http_fixtures import (
    DEADLINE_S,
    Answer,
    Ask,
    Database,
    Process,
    ask,
    database,
    exchange,
    process,
    service_on,
    tables_locked,
    until_settled,
)

Got = Answer | BaseException


@pytest.fixture
def found() -> Iterator[Database]:
    with database() as found:
        yield found


def kill_while(service: Process, request: Ask, reaches: Callable[[], None]) -> Got:
    """Sends a request, kills the service at a step, and returns what the client got."""
    with ThreadPoolExecutor(1) as executor:
        sent: Future[Answer] = executor.submit(exchange, service.port, request)
        try:
            reaches()
        finally:
            service.kill()
        return sent.exception(DEADLINE_S) or sent.result()


def kill_at(step: str, config: Config, found: Database) -> Got:
    """Kills a service at a step of its first request. Returns what the client got."""

    def is_committed() -> None:
        until("the writes are committed", lambda: found.rows() > 0)

    found.wait_at_commit()
    with process(config) as service:
        match step:
            case "claim":
                with tables_locked("inbox_standard"):
                    got = kill_while(service, ask("k"), found.until_waiting)
            case "handler":
                request = ask("k").with_header("x-lock", str(found.lock))
                with found.locked():
                    got = kill_while(service, request, found.until_waiting)
            case "record":
                with tables_locked("call_standard"):
                    got = kill_while(service, ask("k"), found.until_waiting)
            case "commit":
                with found.locked():
                    got = kill_while(service, ask("k"), found.until_waiting)
            case "rejected commit":
                with found.locked():
                    got = kill_while(service, ask("k"), found.until_waiting)
                    assert found.terminate("wait_event_type = 'Lock'") == 1
                    until("the session has ended", lambda: found.sessions("true") == 0)
            case "response":
                got = kill_while(service, ask("k").with_header("x-pause"), is_committed)
            case _:
                raise AssertionError(step)
    until("the session has ended", lambda: found.sessions("true") == 0)
    return got


def violations(found: Database, got: Got, port: int) -> set[str]:
    """Repeats the request after the kill, and checks the invariant."""
    is_committed = found.work("k") > 0
    again = until_settled(port, ask("k"))
    once_more = until_settled(port, ask("k"))
    checks = {
        "the client has no response, or the first one": not isinstance(got, Answer)
        or (got.status, got.body) == (again.status, again.body),
        "a response has its commit": is_committed or not isinstance(got, Answer),
        "an effect has its response": again.status == 201,
        "a repeated request is a replay": again.is_replayed == is_committed,
        "a response is recorded": once_more.is_replayed and once_more.body == again.body,
        "the request took effect once": (found.work("k"), found.claims()) == (2, 1),
    }
    assert isinstance(got, (Answer, ConnectionError, http.client.HTTPException)), got
    return {rule for rule, holds in checks.items() if not holds}


# Only these steps end with a commit. The server executes a COMMIT that was sent.
COMMITTED = ["commit", "response"]
UNDONE = ["claim", "handler", "record", "rejected commit"]


@pytest.mark.parametrize("step", [*UNDONE, *COMMITTED])
@pytest.mark.parametrize("driver", ["asyncpg", "django"])
def test_killed_request_takes_effect_once(found: Database, driver: str, step: str) -> None:
    got = kill_at(step, found.config(driver=driver), found)
    assert (found.work("k"), found.claims()) == ((2, 1) if step in COMMITTED else (0, 0))
    with service_on(found, found.config(driver=driver)) as service:
        assert violations(found, got, service.port) == set()


@pytest.mark.parametrize(
    ("variant", "step", "rule"),
    [
        ("without claim", "response", "the request took effect once"),
        ("responds first", "rejected commit", "a response has its commit"),
        ("records apart", "record", "an effect has its response"),
    ],
)
def test_broken_variant_is_found(found: Database, variant: str, step: str, rule: str) -> None:
    """The broken variants that the test above finds. See http_variants.py."""
    config = found.config(variant=variant)
    got = kill_at(step, config, found)
    with process(config) as service:
        assert rule in violations(found, got, service.port)


def test_response_is_sent_after_the_commit(found: Database) -> None:
    """Invariant: while the COMMIT waits, the client has no response and sees no effect."""
    found.wait_at_commit()
    for driver in ("asyncpg", "psycopg", "django"):
        config = found.config(driver=driver)
        with service_on(found, config) as service, found.locked():
            sent = service.start(ask(driver))
            found.until_waiting()
            assert found.work(driver) == 0
            exchange(service.port, ask(driver)).assert_problem(409, "in-progress")
            assert not sent.done()
            found.unlock()
            sent.result().assert_run(201, 1)
            assert found.work(driver) == 2


@pytest.mark.parametrize("step", ["lease", "key", "call", "record", "response"])
@pytest.mark.parametrize("driver", ["asyncpg", "django"])
def test_killed_leased_request_calls_once(found: Database, driver: str, step: str) -> None:
    """Goal: the request runs again after its lease, and its external call is not repeated."""
    config = found.config(driver=driver, mode="lease")
    request = ask("k").with_header("x-charge")
    got = kill_leased_at(step, config, found, request)
    assert isinstance(got, (ConnectionError, http.client.HTTPException)), got
    is_done, is_charged = step == "response", step in ("call", "record", "response")
    assert found.claims() == int(is_done)
    with service_on(found, config) as restarted:
        if step in ("key", "call", "record"):
            restarted.send(request).assert_problem(409, "in-progress")
            found.expire_leases()
        again = restarted.send(request)
        assert (again.status, again.is_replayed) == (201, is_done)
        assert again.header("x-charges") == str(int(is_done or not is_charged))
        restarted.send(request).assert_replay_of(again)
        assert (found.claims(), restarted.state.charges) == (1, int(not is_charged))


def kill_leased_at(step: str, config: Config, found: Database, request: Ask) -> Got:
    """Kills a service at a step of its first request. Returns what the client got."""
    charged = (
        f"SELECT count(*) FROM idem_calls('all:k', '{found.destination}') "
        "WHERE step = 'charge' AND state = 'done'"
    )

    def has_charged() -> None:
        until("the external call is recorded", lambda: found.value(charged) == 1)

    def is_claimed() -> None:
        until("the response is recorded", lambda: found.claims() == 1)

    with process(config) as service:
        match step:
            case "lease":
                with tables_locked("pending"):
                    got = kill_while(service, request, found.until_waiting)
            case "key":
                with tables_locked("call_standard"):
                    got = kill_while(service, request, found.until_waiting)
            case "call":
                got = kill_while(service, request.with_header("x-hold"), has_charged)
            case "record":
                got = kill_at_record(found, service, request)
            case "response":
                got = kill_while(service, request.with_header("x-pause"), is_claimed)
            case _:
                raise AssertionError(step)
    until("the sessions have ended", lambda: found.sessions("true") == 0)
    return got


def kill_at_record(found: Database, service: Process, request: Ask) -> Got:
    """Kills the service after the completion of the lease, when the record waits for its table."""
    with ThreadPoolExecutor(1) as executor:
        lock = request.with_header("x-lock", str(found.lock))
        with found.locked():
            sent: Future[Answer] = executor.submit(exchange, service.port, lock)
            found.until_waiting()
            with tables_locked("call_standard"):
                found.unlock()
                until("the writes are committed", lambda: found.rows() > 0)
                found.until_waiting()
                service.kill()
                found.terminate("wait_event_type = 'Lock'")
                until("the sessions have ended", lambda: found.sessions("true") == 0)
        return sent.exception(DEADLINE_S) or sent.result()
