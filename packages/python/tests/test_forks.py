"""The processes of the tests."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

from conftest import DEADLINE

PROGRAM = """
from forks import Fork
fork = Fork("worker", "forks.tests", "look", "before acquire")
print(fork.line({deadline}), flush=True)
input()
"""


def test_forks_end_with_killed_tests() -> None:
    """Goal: tests that are killed leave no processes behind."""
    program = PROGRAM.format(deadline=DEADLINE)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,
        text=True,
    ) as tests:
        assert tests.stdout is not None
        try:
            assert tests.stdout.readline() == "stopped\n"
            tests.kill()
            # The pipe ends when the fork and the fork server have ended too.
            rest, _ = tests.communicate(timeout=DEADLINE)
            assert rest == ""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(tests.pid, signal.SIGKILL)
