"""The head of an ASGI request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from .application import HttpScope
from .fingerprint import UNQUOTED
from .key import HEADER
from .options import content_length_of


class RequestHead:
    """A request without its body: what the functions of `Scope.by` and `applies_to` get."""

    def __init__(self, scope: HttpScope) -> None:
        self.scope: Mapping[str, Any] = scope
        """The ASGI scope: for example `scope["user"]` of an authenticating middleware."""
        self.method: str = scope["method"]
        self._fields = [
            (bytes(name).decode("latin-1").lower(), bytes(value).decode("latin-1"))
            for name, value in scope["headers"]
        ]
        self.headers: Mapping[str, str] = self._joined()
        """The headers, with names in lower case. Values of one name are joined with a comma."""

    @property
    def keys(self) -> list[str]:
        """The values of the headers `Idempotency-Key`."""
        return [value for name, value in self._fields if name == HEADER]

    @property
    def path(self) -> str:
        """The path as the application routes it: without the prefix of a mount."""
        path: str = self.scope["path"]
        rest = path.removeprefix(self.scope.get("root_path", ""))
        return path if rest and not rest.startswith("/") else rest or "/"

    @property
    def path_and_query(self) -> bytes:
        """The path and the query as the client has sent them."""
        path = self.scope.get("raw_path") or quote(self.scope["path"], safe=UNQUOTED).encode()
        query = self.scope.get("query_string", b"")
        return bytes(path + b"?" + query if query else path)

    @property
    def content_length(self) -> int:
        return content_length_of(self.headers.get("content-length", "0"))

    def _joined(self) -> Mapping[str, str]:
        joined: dict[str, str] = {}
        for name, value in self._fields:
            joined[name] = f"{joined[name]},{value}" if name in joined else value
        return joined
