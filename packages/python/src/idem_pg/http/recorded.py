"""A response as it is stored in the journal. The crate `idem-http` uses the same form."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .problem import Kind, Problem, log
from .response import Headers, Response, own_response

REPLAYED = "idempotency-replayed"
"""The header that is `true` in a replayed response."""

_OF_THE_CONNECTION = frozenset(
    {
        "connection",
        "content-length",
        "date",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers that belong to one connection or one moment. They are never recorded."""


_UNSENDABLE = re.compile("[\r\n\0\u0100-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded response, with the fingerprint of its request in hexadecimal digits."""

    fingerprint: str
    status: int
    headers: Headers
    body: bytes

    @classmethod
    def of(cls, fingerprint: bytes, response: Response, is_kept: Callable[[str], bool]) -> Recorded:
        lower = [(name.lower(), value) for name, value in response.headers]
        dropped = _OF_THE_CONNECTION | _named_by_connection(lower)
        kept = [(name, value) for name, value in lower if name not in dropped and is_kept(name)]
        for name, value in kept:
            if not _is_sendable(name + value):
                log.warning("the header %r of a response cannot be recorded", name)
                raise Problem(Kind.FAILED)
        return cls(fingerprint.hex(), response.status, kept, response.body)

    @classmethod
    def from_json(cls, value: Any) -> Recorded:
        """Reads the value of the journal. Raises Problem if it is no recorded response."""
        try:
            if not all(isinstance(header, list) for header in value["headers"]):
                raise ValueError("a header that is no list")
            headers = [(name, text) for name, text in value["headers"]]
            if not all(_is_sendable(name + text) for name, text in headers):
                raise ValueError("a header that cannot be sent")
            body = base64.b64decode(value["body_base64"], validate=True)
            fingerprint, status = value["fingerprint"], value["status"]
            if type(fingerprint) is not str or type(status) is not int:
                raise TypeError("a fingerprint or a status of another type")
            if not 100 <= status < 1000:
                raise ValueError("a status out of range")
            return cls(fingerprint, status, headers, body)
        except (TypeError, KeyError, ValueError, binascii.Error) as error:
            log.warning("the journal has an unreadable recorded response: %r", error)
            raise Problem(Kind.FAILED) from error

    def to_json(self) -> dict[str, Any]:
        return {
            "fingerprint": self.fingerprint,
            "status": self.status,
            "headers": [list(header) for header in self.headers],
            "body_base64": base64.b64encode(self.body).decode(),
        }

    def replayed(self, fingerprint: bytes) -> Response:
        """Returns the response to a request with this fingerprint, and a key that was used."""
        if self.fingerprint != fingerprint.hex():
            raise Problem(Kind.MISMATCH)
        return own_response(self.status, [*self.headers, (REPLAYED, "true")], self.body)


def _is_sendable(text: str) -> bool:
    """Returns whether a header can contain this text. Each character is one byte."""
    return _UNSENDABLE.search(text) is None


def _named_by_connection(headers: Headers) -> set[str]:
    values = [value for name, value in headers if name == "connection"]
    return {name.strip().lower() for value in values for name in value.split(",")}
