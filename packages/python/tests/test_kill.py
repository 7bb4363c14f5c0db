"""A process that is killed at any step: the message is completed, and its request is made once."""

from __future__ import annotations

import uuid

import psycopg
import pytest
from conftest import DEADLINE, expire_leases
from forks import Fork

from idem_pg import Idem

WORKERS = ["worker", "async_worker"]

STEPS = [
    "before acquire",
    "after acquire",
    "before begin",
    "after begin",
    "before request",
    "after request",
    "before finish",
    "after finish",
    "before complete",
    "after complete",
]


@pytest.fixture(params=WORKERS)
def program(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def destination(observer: psycopg.Connection) -> str:
    observer.execute("CREATE TABLE IF NOT EXISTS request (destination text, key text)")
    name = f"python.kill.{uuid.uuid4()}"
    observer.execute("SELECT idem_configure_retries(%s, base => '0')", [name])
    return name


def run_and_kill(
    program: str, destination: str, variant: str, step: str, observer: psycopg.Connection
) -> None:
    """Kills a process at a step with SIGKILL, and runs another one to its end."""
    killed = Fork(program, destination, variant, step)
    try:
        assert killed.line(DEADLINE) == "stopped"
    finally:
        killed.kill()
    expire_leases(observer, destination)
    other = Fork(program, destination, variant)
    try:
        other.wait(DEADLINE)
    finally:
        other.kill()


def requests_of(observer: psycopg.Connection, destination: str) -> list[str]:
    sql = "SELECT key FROM request WHERE destination = %s"
    return [row[0] for row in observer.execute(sql, [destination])]


@pytest.mark.parametrize("step", STEPS)
def test_request_that_is_looked_up_is_made_once(
    step: str, program: str, destination: str, observer: psycopg.Connection
) -> None:
    run_and_kill(program, destination, "look", step, observer)
    requests = requests_of(observer, destination)
    assert len(requests) == 1
    (effect,) = Idem(observer).effects("m", destination)
    assert effect.json() == {"key": requests[0]}


@pytest.mark.parametrize("step", ["after request", "before finish"])
def test_repeated_request_has_the_same_key(
    step: str, program: str, destination: str, observer: psycopg.Connection
) -> None:
    run_and_kill(program, destination, "repeat", step, observer)
    first, second = requests_of(observer, destination)
    assert first == second
    assert len(Idem(observer).effects("m", destination)) == 1


def test_request_without_the_journal_is_made_twice(
    program: str, destination: str, observer: psycopg.Connection
) -> None:
    """The broken variant that these tests find."""
    run_and_kill(program, destination, "careless", "after request", observer)
    assert len(requests_of(observer, destination)) == 2
