"""The scope of idempotency keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..ids import scoped_id
from .problem import Kind, Problem

LONGEST_ID_BYTES = 1024
"""The longest message id that the server accepts."""

Caller = Callable[[Any], str | None]


class Scope:
    """Defines which callers share keys, and thereby get each other's recorded responses."""

    _caller: Caller | None

    def __init__(self) -> None:
        raise TypeError("use Scope.by(...) or Scope.single_tenant()")

    @classmethod
    def by(cls, caller: Caller) -> Scope:
        """Gives each caller its own keys.

        `caller` gets the request and returns the name of a tenant, an account or a user. If it
        returns None or "", the request gets status 403. Derive the name from authenticated data: a
        client that can name another caller can read the recorded responses of that caller.
        """
        if not callable(caller):
            raise TypeError("Scope.by needs a function that returns the name of the caller")
        return cls._of(caller)

    @classmethod
    def single_tenant(cls) -> Scope:
        """Lets all callers share the keys.

        Use this only for a service in which callers may read each other's responses.
        """
        return cls._of(None)

    @classmethod
    def _of(cls, caller: Caller | None) -> Scope:
        scope = cls.__new__(cls)
        scope._caller = caller
        return scope

    def id_of(self, request: Any, key: str) -> str:
        """Returns the message id of a request with this key."""
        try:
            message_id = scoped_id(self._name_of(request), key)
        except ValueError as error:
            raise Problem(Kind.UNKNOWN_CALLER) from error
        if len(message_id.encode()) > LONGEST_ID_BYTES:
            raise Problem(Kind.KEY_TOO_LONG)
        return message_id

    def _name_of(self, request: Any) -> str | None:
        if self._caller is None:
            return None
        caller = self._caller(request)
        if caller is None:
            raise Problem(Kind.UNKNOWN_CALLER)
        if not isinstance(caller, str):
            raise TypeError("the function of Scope.by must return a string or None")
        return caller
