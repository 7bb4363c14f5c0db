"""The configuration of a service of the tests, and what its handler shares with the test."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
import threading
from typing import Any

from idem_pg.http import RunningRequests
from idem_pg.http.options import Mode


@dataclasses.dataclass
class Config:
    """A service. It can be passed to another process as JSON."""

    host: str
    port: int
    database: str
    user: str
    name: str
    """The application_name of the connections."""
    destination: str
    table: str
    driver: str = "asyncpg"
    mode: Mode = "transaction"
    framework: str = "starlette"
    by_tenant: bool = False
    required: bool = True
    methods: tuple[str, ...] = ("POST", "PATCH")
    request_limit: int = 1 << 20
    response_limit: int = 1 << 20
    lease_ms: int = 30_000
    kept_headers: tuple[str, ...] | None = None
    pool_size: int = 8
    pool_timeout_s: float = 2.0
    autocommit: bool = False
    """Whether the pool or engine commits each statement."""
    isolation: str | None = None
    """The isolation of the transactions of the pool, engine or connection, in capitals."""
    manual_commit: bool = False
    """Whether the connection of Django is not in autocommit mode."""
    variant: str = "sound"
    """The transaction of a request: see http_variants.py."""


def config_of(text: str) -> Config:
    """Reads the JSON of a Config."""
    return Config(**json.loads(text))


class State:
    """What the handler and the test share."""

    def __init__(self) -> None:
        self.runs = 0
        self.running = 0
        self.holding = 0
        self.charges = 0
        self.background = 0
        self.gate = threading.Semaphore(0)
        self.kept: list[Any] = []
        self.requests = RunningRequests()
        self.source: Any = None
        self.is_serving = threading.Event()
        self.ended = asyncio.Event()


def listen() -> socket.socket:
    """Returns a socket that listens on a free port."""
    return socket.create_server(("127.0.0.1", 0), backlog=64)
