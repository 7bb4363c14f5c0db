"""The options of a middleware, and the rules that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, Literal, get_args

from ..leases import DEFAULT_LEASE
from .key import key_of
from .problem import Kind, Problem, log
from .routes import AppliesTo, Matcher, matcher_of
from .scope import Scope

SHORTEST_LEASE, LONGEST_LEASE = timedelta(milliseconds=100), timedelta(days=1)
MEBIBYTE = 1 << 20
LONGEST_LENGTH_DIGITS = 19

Mode = Literal["transaction", "lease"]
MODES = get_args(Mode)

TEMPORARY = frozenset({401, 403, 407, 408, 409, 425, 429})
"""Statuses below 500 after which another attempt may succeed: with other credentials, at another
time, or with the same request."""


def all_but_cookies(name: str) -> bool:
    """A cookie may identify a session, so a replayed response contains no cookie."""
    return name != "set-cookie"


@dataclass(frozen=True)
class Options:
    """What a middleware protects, and what it records."""

    destination: str
    scope: Scope
    applies_to: AppliesTo
    """The routes that are protected: patterns of paths, or a function of the request.

    A `*` in a pattern stands for any text, also with slashes: `("/orders", "/payments/*")`.
    `("/*",)` stands for every route. The path has the form in which the application routes it,
    without the prefix of a mount. The function gets what the function of `Scope.by` gets, and
    returns True or False."""
    mode: Mode = "transaction"
    """With "transaction" the handler works in the transaction that claims the request and records
    the response. With "lease" the request is leased, for work that cannot share a transaction."""
    methods: Collection[str] = ("POST", "PATCH")
    required: bool = True
    request_limit: int = MEBIBYTE
    """The largest body of a protected request, in bytes."""
    response_limit: int = MEBIBYTE
    """The largest body of a recorded response, in bytes."""
    keep_headers: Callable[[str], bool] = all_but_cookies
    """Gets the name of the header in lower case."""
    lease: timedelta = DEFAULT_LEASE
    """The duration of a lease."""

    def __post_init__(self) -> None:
        if not isinstance(self.scope, Scope):
            raise TypeError("scope must be Scope.by(...) or Scope.single_tenant()")
        if not isinstance(self.destination, str) or not self.destination:
            raise ValueError("destination must be a text that is not empty")
        matcher_of(self.applies_to)
        if isinstance(self.methods, str):
            raise TypeError("methods must be a collection of names, not one text")
        if any(method != method.upper() for method in self.methods):
            raise ValueError("methods must have the names of methods in capitals")
        if self.mode not in MODES:
            raise ValueError('mode must be "transaction" or "lease"')
        if not SHORTEST_LEASE <= self.lease <= LONGEST_LEASE:
            raise ValueError("lease must be between 100 milliseconds and one day")

    @cached_property
    def _applies(self) -> Matcher:
        return matcher_of(self.applies_to)

    def message_id(
        self, method: str, path: str, keys: Sequence[str], request: Any, *, is_protected: bool
    ) -> str | None:
        """Returns the message id of a request, or None if it is not protected.

        `keys` are the values of its headers `Idempotency-Key`. `request` is passed to the functions
        of `applies_to` and `scope`. Raises Problem if another middleware protects the request.
        """
        if method not in self.methods or not self._applies(path, request):
            return None
        if is_protected:
            log.error("applies_to of two instances of IdempotencyMiddleware includes %s", path)
            raise Problem(Kind.FAILED, "two idempotency middlewares apply to this route")
        key = key_of(keys)
        if key is not None:
            return self.scope.id_of(request, key)
        if self.required:
            raise Problem(Kind.MISSING_KEY)
        return None

    def check_request_size(self, size: int) -> None:
        if size > self.request_limit:
            limit = self.request_limit
            raise Problem(
                Kind.REQUEST_TOO_LARGE,
                f"the body of a request with an Idempotency-Key must not exceed {limit} bytes",
            )

    @property
    def is_leased(self) -> bool:
        return self.mode == "lease"

    def keeps(self, status: int) -> bool:
        """Returns whether a response with this status is recorded.

        Statuses after which another attempt may succeed are never recorded.
        """
        return 200 <= status < 500 and status not in TEMPORARY

    def limit_of(self, status: int) -> int | None:
        """Returns the limit of a response. A response that is not recorded has none."""
        return self.response_limit if self.keeps(status) else None


def content_length_of(text: str) -> int:
    """Returns the value of a header Content-Length, or 0 if it is not a number."""
    if not text.isdecimal():
        return 0
    if len(text) > LONGEST_LENGTH_DIGITS:
        raise Problem(Kind.UNREADABLE_REQUEST, "the header Content-Length has too many digits")
    return int(text)


def keeps_writes(status: int, *, is_requested: bool) -> bool:
    """Returns whether the writes of a handler are committed together with its response."""
    return is_requested or not 400 <= status < 500
