"""Programs of the tests, in processes that are forks of one that has imported their modules.

A fork starts in milliseconds. An interpreter takes much longer for its imports.
"""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import multiprocessing.forkserver
import os
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext

MODULES = ["worker", "async_worker", "http_app", "http_django_app"]

Say = Callable[[str], None]


class Fork:
    """A process that runs the function `main` of a module. It can say lines to the test."""

    def __init__(self, module: str, *arguments: str) -> None:
        context = _context()
        self._lines, said = context.Pipe(duplex=False)
        self._process = context.Process(target=_run, args=(said, module, arguments), daemon=True)
        self._process.start()
        # The end of the process then ends the pipe.
        said.close()

    def line(self, deadline_s: float) -> str:
        """Returns the next line, or "" if the process ends, or says nothing until the deadline."""
        try:
            return str(self._lines.recv()) if self._lines.poll(deadline_s) else ""
        except EOFError:
            return ""

    def wait(self, deadline_s: float) -> None:
        """Waits until the process has ended without an error."""
        self._process.join(deadline_s)
        assert self._process.exitcode == 0, self._process

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._lines.close()


def _run(said: Connection, module: str, arguments: tuple[str, ...]) -> None:
    threading.Thread(target=_end_with_tests, daemon=True).start()
    importlib.import_module(module).main(said.send, *arguments)


def _end_with_tests() -> None:
    """Ends this process when the tests have ended, also if they were killed.

    The fork server ends after its last fork, because each fork keeps it alive.
    """
    tests = multiprocessing.parent_process()
    if tests is not None:
        tests.join()
    os._exit(1)


@functools.lru_cache
def _context() -> ForkServerContext:
    """Starts the fork server."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(MODULES)
    # It imports the modules before it gets the path of this process.
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return context
