"""A proxy between a service and the database, which cuts a connection at its COMMIT."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from typing import Literal

Cut = Literal["before", "after"]


class Proxy:
    """Accepts TCP connections, and forwards them to the socket of the server."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._armed: Cut | None = None
        self.cuts = 0
        self.is_for_good = False
        """Whether no connection is accepted after the cut."""
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_once(self, cut: Cut) -> None:
        """Cuts the next connection that sends COMMIT: before or after the server has executed it.

        The service gets no reply in both cases.
        """
        self._armed = cut

    def close(self) -> None:
        self._listener.close()
        for found in self._sockets:
            found.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.is_for_good and self.cuts > 0:
                    client.close()
                    continue
                server = _server()
                self._sockets += [client, server]
                _Connection(self, client, server)

    def shut_all(self) -> None:
        """Ends all connections."""
        for found in self._sockets:
            with contextlib.suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)

    def take_cut(self) -> Cut | None:
        cut, self._armed = self._armed, None
        return cut


def _server() -> socket.socket:
    """Connects to the server, over TCP or its Unix socket."""
    host, port = os.environ["PGHOST"], os.environ.get("PGPORT", "5432")
    if not host.startswith("/"):
        return socket.create_connection((host, int(port)))
    server = socket.socket(socket.AF_UNIX)
    server.connect(f"{host}/.s.PGSQL.{port}")
    return server


class _Connection:
    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._is_cut = False
        for forward in (self._to_server, self._to_client):
            threading.Thread(target=forward, daemon=True).start()

    def _to_server(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._client.recv(1 << 16):
                if b"COMMIT" in data:
                    match self._proxy.take_cut():
                        case "before":
                            return self._cut()
                        case "after":
                            self._is_cut = True
                self._server.sendall(data)
        return self._shut()

    def _to_client(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._server.recv(1 << 16):
                if self._is_cut:
                    return self._cut()
                self._client.sendall(data)
        return self._shut()

    def _cut(self) -> None:
        self._proxy.cuts += 1
        if self._proxy.is_for_good:
            self._proxy.shut_all()
        self._shut()

    def _shut(self) -> None:
        for found in (self._client, self._server):
            with contextlib.suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def proxy() -> Iterator[Proxy]:
    found = Proxy()
    try:
        yield found
    finally:
        found.close()
