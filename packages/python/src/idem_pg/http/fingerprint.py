"""Fingerprints, which distinguish different requests with the same key."""

from __future__ import annotations

import hashlib

UNQUOTED = "/!$&'()*+,;=:@~"
"""The characters of a path that are not quoted, if the server does not pass the path as sent."""


def fingerprint_of(method: str, path_and_query: bytes, body: bytes) -> bytes:
    """Returns SHA-256 over the method, the path with its query as it was sent, and the body."""
    # A zero byte separates the parts, because a method and a path contain none.
    return hashlib.sha256(b"\0".join((method.encode(), path_and_query, body))).digest()


def journal_request(fingerprint: bytes) -> dict[str, str]:
    """Returns the value that the journal entry stores as its request."""
    return {"fingerprint": fingerprint.hex()}
