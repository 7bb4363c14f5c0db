"""Fixtures: a service, an HTTP client, and what the tests read in the database."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import dataclasses
import functools
import http.client
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import http_django_app
import psycopg
from conftest import expire_leases, observing, until
from forks import Fork
from http_app import serve
from http_config import Config, State, listen

T = TypeVar("T")
Message = dict[str, Any]

DEADLINE_S = 30.0
"""The longest time for which a test waits for a response."""

DRIVERS = ["asyncpg", "psycopg"]
OTHER_DRIVERS = [
    "psycopg",
    "engine+asyncpg",
    "engine+psycopg",
    "session+asyncpg",
    "session+psycopg",
]
"""The drivers over which only the cases run that depend on the kind of connection."""

MODES: dict[str, dict[str, Any]] = {"transaction": {}, "lease": {"mode": "lease"}}
"""The modes of the middleware of ASGI, over asyncpg."""

KINDS: dict[str, dict[str, Any]] = {
    **MODES,
    "django": {"driver": "django"},
    "django lease": {"driver": "django", "mode": "lease"},
}
"""The services for which all cases run."""

TRANSACTIONS = {"transaction", "django"}
"""The services that undo the writes of a handler that fails."""


@dataclasses.dataclass(frozen=True)
class Ask:
    """A request that can be sent several times."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def with_header(self, name: str, value: str = "1") -> Ask:
        return dataclasses.replace(self, headers=(*self.headers, (name, value)))

    def without_key(self) -> Ask:
        kept = tuple(header for header in self.headers if header[0] != "idempotency-key")
        return dataclasses.replace(self, headers=kept)

    def to(self, **changes: Any) -> Ask:
        return dataclasses.replace(self, **changes)


def ask(key: str) -> Ask:
    """Returns a POST of /orders. Both the idempotency key and the body are `key`."""
    return Ask("POST", "/orders", (("idempotency-key", f'"{key}"'),), key.encode())


@dataclasses.dataclass(frozen=True)
class Answer:
    """A response with its complete body."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for found, value in self.headers if found == name), None)

    @property
    def is_replayed(self) -> bool:
        return self.header("idempotency-replayed") == "true"

    def problem(self) -> str:
        assert self.header("content-type") == "application/problem+json", self
        problem = json.loads(self.body)
        assert problem["status"] == self.status
        assert problem["detail"]
        assert problem["title"]
        assert problem["type"].startswith("urn:idem:")
        return str(problem["type"].removeprefix("urn:idem:"))

    def assert_problem(self, status: int, problem: str) -> None:
        assert (self.status, self.problem()) == (status, problem), self
        is_transient = problem in ("in-progress", "unavailable", "in-doubt")
        assert (self.header("retry-after") is not None) == is_transient, self

    def assert_run(self, status: int, run: int) -> None:
        """Asserts that this is the response of the run with this number, and no replay."""
        assert self.status == status, self
        assert self.header("x-run") == str(run), self
        assert not self.is_replayed, self

    def assert_replay_of(self, first: Answer) -> None:
        assert self.is_replayed, self
        assert (self.status, self.body) == (first.status, first.body)
        assert self.header("x-run") == first.header("x-run")


def exchange(port: int, request: Ask) -> Answer:
    """Sends a request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    with contextlib.closing(connection):
        connection.putrequest(request.method, request.path)
        connection.putheader("content-length", str(len(request.body)))
        for name, value in request.headers:
            connection.putheader(name, value)
        connection.endheaders(request.body)
        response = connection.getresponse()
        headers = tuple((name.lower(), value) for name, value in response.getheaders())
        return Answer(response.status, headers, response.read())


async def call(
    app: Any, request: Ask, *, is_complete: bool = True, is_connected: bool = True, **changes: Any
) -> list[Message]:
    """Calls an application with a request. Returns what the application sends.

    `changes` are keys of the ASGI scope.
    """
    path, _, query = request.path.partition("?")
    scope = {
        "type": "http",
        "method": request.method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in request.headers],
        **changes,
    }
    received = [{"type": "http.request", "body": request.body, "more_body": not is_complete}]
    sent: list[Message] = []

    async def receive() -> Message:
        if received:
            return received.pop()
        if is_complete:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if not is_connected:
            raise ConnectionResetError
        sent.append(message)

    await app(scope, receive, send)
    return sent


@contextlib.contextmanager
def disconnecting(port: int, request: Ask) -> Iterator[None]:
    """Sends a request, and closes the connection at the end of the block."""
    lines = [f"{request.method} {request.path} HTTP/1.1", "host: tests"]
    lines += [f"{name}: {value}" for name, value in request.headers]
    lines += [f"content-length: {len(request.body)}", "", ""]
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall("\r\n".join(lines).encode() + request.body)
        yield


@functools.lru_cache
def observing_connection() -> psycopg.Connection:
    """Returns the connection of all tests that sees what is committed."""
    connection = observing()
    atexit.register(connection.close)
    return connection


class Database:
    """A table and a destination of one test, and a connection that sees what is committed."""

    def __init__(self) -> None:
        unique = uuid.uuid4().hex[:12]
        self.name = f"http-{unique}"
        self.destination = f"http.tests.{unique}"
        self.table = f"http_work_{unique}"
        self.lock = uuid.uuid4().int % (1 << 31)
        self.connection = observing_connection()
        self._lock = threading.Lock()
        self._holder = self.connection
        # The table has no primary key, so that duplicate inserts are visible.
        self.execute(f"CREATE TABLE {self.table} (id text)")

    def close(self) -> None:
        self.execute(f"DROP TABLE {self.table}")

    def execute(self, sql: str) -> None:
        with self._lock:
            self.connection.execute(sql.encode())

    def value(self, sql: str) -> Any:
        with self._lock:
            row = self.connection.execute(sql.encode()).fetchone()
        assert row is not None
        return row[0]

    def config(self, **options: Any) -> Config:
        return Config(
            host=os.environ["PGHOST"],
            port=int(os.environ.get("PGPORT", "5432")),
            database=os.environ["PGDATABASE"],
            user=os.environ["PGUSER"],
            name=self.name,
            destination=self.destination,
            table=self.table,
            **options,
        )

    def work(self, body: str) -> int:
        """Returns the number of rows that handlers inserted for requests with this body."""
        return int(self.value(f"SELECT count(*) FROM {self.table} WHERE id = '{body}'"))

    def rows(self) -> int:
        return int(self.value(f"SELECT count(*) FROM {self.table}"))

    def claims(self) -> int:
        sql = f"SELECT count(*) FROM idem.inbox WHERE destination = '{self.destination}'"
        return int(self.value(sql))

    def expire_leases(self) -> None:
        """Ends the leases of all requests."""
        with self._lock:
            expire_leases(self.connection, self.destination)

    def assert_untouched(self) -> None:
        assert (self.rows(), self.claims()) == (0, 0)

    def sessions(self, condition: str) -> int:
        """Returns the number of the service's sessions for which the condition is true."""
        return int(
            self.value(
                "SELECT count(*) FROM pg_stat_activity "
                f"WHERE application_name = '{self.name}' AND {condition}"
            )
        )

    def until_quiet(self) -> None:
        """Waits until no session of the service is in a transaction."""
        until("no session is in a transaction", lambda: self.sessions("state <> 'idle'") == 0)

    def until_waiting(self) -> None:
        """Waits until a session of the service waits for a lock."""
        until("a session waits", lambda: self.sessions("wait_event_type = 'Lock'") > 0)

    def terminate(self, condition: str = "true") -> int:
        """Terminates sessions of the service. Returns their number."""
        return int(
            self.value(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                f"WHERE application_name = '{self.name}' AND {condition}"
            )
        )

    def wait_at_commit(self) -> None:
        """Lets a COMMIT with writes wait while the test holds the lock."""
        self.execute(
            f"""
            CREATE FUNCTION {self.table}_wait() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                PERFORM pg_advisory_xact_lock_shared({self.lock});
                RETURN NULL;
            END $$;
            CREATE CONSTRAINT TRIGGER waits AFTER INSERT ON {self.table}
                DEFERRABLE INITIALLY DEFERRED
                FOR EACH ROW EXECUTE FUNCTION {self.table}_wait()"""
        )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the lock for which handlers (x-lock) and commits (wait_at_commit) wait."""
        with psycopg.connect(autocommit=True) as self._holder:
            self._holder.execute("SELECT pg_advisory_lock(%s)", [self.lock])
            yield

    def unlock(self) -> None:
        """Releases the lock before the end of the block."""
        self._holder.execute("SELECT pg_advisory_unlock(%s)", [self.lock])

    def recorded(self) -> str:
        """Returns all recorded responses as text."""
        return str(
            self.value(
                "SELECT coalesce(string_agg(c.response::text, ' '), '') "
                "FROM idem.inbox i, idem_calls(i.id, i.destination) c "
                f"WHERE i.destination = '{self.destination}'"
            )
        )


@contextlib.contextmanager
def tables_locked(prefix: str) -> Iterator[None]:
    """Locks the tables of idem with this prefix, so that their next user waits."""
    with psycopg.connect() as connection:
        row = connection.execute(
            "SELECT string_agg(oid::regclass::text, ', ') FROM pg_class "
            "WHERE relnamespace = 'idem'::regnamespace AND relkind = 'r' "
            "AND starts_with(relname, %s)",
            [prefix],
        ).fetchone()
        assert row is not None
        connection.execute(f"LOCK TABLE {row[0]} IN ACCESS EXCLUSIVE MODE".encode())
        yield


@functools.lru_cache
def event_loop() -> asyncio.AbstractEventLoop:
    """Returns the event loop of all services, which runs in a thread."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def start_task(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Starts a task in the event loop of the services."""
    return asyncio.run_coroutine_threadsafe(coroutine, event_loop())


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a task in the event loop of the services."""
    return start_task(coroutine).result(DEADLINE_S)


class Fixture:
    """A service in a thread, and its database."""

    def __init__(self, database: Database, config: Config) -> None:
        self.database = database
        self.config = config
        self.state = State()
        listener = listen()
        self.port: int = listener.getsockname()[1]
        self._executor = ThreadPoolExecutor(16)
        if config.driver == "django":
            self._serving = self._executor.submit(
                http_django_app.serve, config, self.state, listener
            )
        else:
            self._serving = start_task(serve(config, self.state, listener))
        until("the service serves", self._is_started)

    def _is_started(self) -> bool:
        if self._serving.done():
            self._serving.result()
        return self.state.is_serving.is_set()

    def close(self) -> None:
        self.state.gate.release(1000)
        event_loop().call_soon_threadsafe(self.state.ended.set)
        self._serving.result(DEADLINE_S)
        self._executor.shutdown()

    @property
    def runs(self) -> int:
        return self.state.runs

    def send(self, request: Ask) -> Answer:
        return exchange(self.port, request)

    def start(self, request: Ask) -> Future[Answer]:
        return self._executor.submit(self.send, request)

    def release(self) -> None:
        """Releases one handler that waits (x-hold)."""
        self.state.gate.release()

    def until_holding(self, count: int) -> None:
        """Waits until handlers wait for `release` (x-hold)."""
        until("the expected number of handlers waits", lambda: self.state.holding == count)

    def until_no_handler_runs(self) -> None:
        until("no handler runs", lambda: self.state.running == 0)

    def send_until_settled(self, request: Ask) -> Answer:
        return until_settled(self.port, request)

    def claims(self) -> int:
        return self.database.claims()

    def work(self, body: str) -> int:
        return self.database.work(body)


def until_settled(port: int, request: Ask) -> Answer:
    """Repeats the request until the response is not "in progress"."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        response = exchange(port, request)
        if response.status != 409 or response.problem() != "in-progress":
            return response
        assert time.monotonic() < deadline, f"{request} stays in progress"
        time.sleep(0.02)


@contextlib.contextmanager
def database() -> Iterator[Database]:
    found = Database()
    try:
        yield found
        until("no task is left", lambda: run(task_names()) == [])
    finally:
        found.close()


async def task_names() -> list[str]:
    """Returns the names of the tasks of the middleware."""
    names = [task.get_name() for task in asyncio.all_tasks()]
    return [name for name in names if name.startswith("idem http")]


@contextlib.contextmanager
def service(**options: Any) -> Iterator[Fixture]:
    """Runs a service with these fields of Config."""
    with database() as found, service_on(found, found.config(**options)) as fixture:
        yield fixture


@contextlib.contextmanager
def service_on(found: Database, config: Config) -> Iterator[Fixture]:
    fixture = Fixture(found, config)
    try:
        yield fixture
    finally:
        fixture.close()


class Process:
    """A service in a process of its own."""

    def __init__(self, config: Config) -> None:
        module = "http_django_app" if config.driver == "django" else "http_app"
        self._fork = Fork(module, json.dumps(dataclasses.asdict(config)))

    @functools.cached_property
    def port(self) -> int:
        """The port, when the process listens."""
        return int(self._fork.line(DEADLINE_S))

    def kill(self) -> None:
        self._fork.kill()


@contextlib.contextmanager
def process(config: Config) -> Iterator[Process]:
    found = Process(config)
    try:
        assert found.port
        yield found
    finally:
        found.kill()
