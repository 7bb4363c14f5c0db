"""A process that is killed at any step: the message is completed, and its request is made once."""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from pathlib import Path

import psycopg
import pytest

from idem_pg import Idem

WORKERS = ["worker.py", "async_worker.py"]

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
    return str(Path(__file__).with_name(request.param))


@pytest.fixture
def destination(observer: psycopg.Connection) -> str:
    observer.execute("CREATE TABLE IF NOT EXISTS request (destination text, key text)")
    name = f"python.kill.{uuid.uuid4()}"
    observer.execute("SELECT idem_configure_retries(%s, base => '0')", [name])
    return name


def run_and_kill(program: str, destination: str, variant: str, step: str) -> None:
    """Kills a process at a step with SIGKILL, and runs another one to its end."""
    command = [sys.executable, program, destination, variant]
    with subprocess.Popen(
        [*command, step], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as killed:
        assert killed.stdout is not None
        # If the process does not reach the step, it is killed too, and the line is empty.
        deadline = threading.Timer(60, killed.kill)
        deadline.start()
        line = killed.stdout.readline()
        deadline.cancel()
        killed.kill()
        assert line == "stopped\n"
    subprocess.run(command, check=True, timeout=60)


def requests_of(observer: psycopg.Connection, destination: str) -> list[str]:
    sql = "SELECT key FROM request WHERE destination = %s"
    return [row[0] for row in observer.execute(sql, [destination])]


@pytest.mark.parametrize("step", STEPS)
def test_request_that_is_looked_up_is_made_once(
    step: str, program: str, destination: str, observer: psycopg.Connection
) -> None:
    run_and_kill(program, destination, "look", step)
    requests = requests_of(observer, destination)
    assert len(requests) == 1
    (effect,) = Idem(observer).effects("m", destination)
    assert effect.json() == {"key": requests[0]}


@pytest.mark.parametrize("step", ["after request", "before finish"])
def test_repeated_request_has_the_same_key(
    step: str, program: str, destination: str, observer: psycopg.Connection
) -> None:
    run_and_kill(program, destination, "repeat", step)
    first, second = requests_of(observer, destination)
    assert first == second
    assert len(Idem(observer).effects("m", destination)) == 1


def test_request_without_the_journal_is_made_twice(
    program: str, destination: str, observer: psycopg.Connection
) -> None:
    """The broken variant that these tests find."""
    run_and_kill(program, destination, "careless", "after request")
    assert len(requests_of(observer, destination)) == 2
