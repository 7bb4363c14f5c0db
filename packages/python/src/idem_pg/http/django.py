"""A Django middleware that makes each request with an `Idempotency-Key` take effect once.

    class OrderKeys(IdempotencyMiddleware):
        destination = "shop.place-order"
        scope = Scope.by(lambda request: request.user.get_username() or None)

Name the subclass in MIDDLEWARE, below the middleware that authenticates. The middleware itself can
be used with the setting IDEM_HTTP, a dict with the names of the class attributes in capitals:
`IDEM_HTTP = {"DESTINATION": "shop.place-order", "SCOPE": Scope.single_tenant()}`.

The view runs in `transaction.atomic(durable=True)` of the connection `using`, and in a savepoint.
`request_transaction(request).connection` is that connection. There is no mode with a lease.
docs/http.md says what differs from the crate `idem-http`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import fields
from typing import Any, ClassVar
from urllib.parse import quote

from asgiref.sync import async_to_sync
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured, RequestDataTooBig
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.http.request import RawPostDataException, UnreadablePostError
from django.utils.module_loading import import_string

from ..executors import raise_caused
from ..idem import Idem
from ..outcomes import Claimed, InProgress, Mismatch, Outcome
from ..transactions import short_transaction, transactions
from . import statements
from .fingerprint import UNQUOTED, fingerprint_of
from .identity import Identity
from .options import Options, content_length_of, keeps_writes
from .problem import Kind, Problem, log, problem_of
from .recorded import Headers, Recorded, replay
from .retry import retried
from .scope import Scope

_AUTHORITY = re.compile(r"[^/?]*://[^/?]*")


class RequestTransaction:
    """The transaction that claims the request and records its response."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.keeps_writes = False

    def keep_writes(self) -> None:
        """Commits the writes of the view also with a status of 4xx."""
        self.keeps_writes = True


class IdempotencyMiddleware:
    """Makes each request with an `Idempotency-Key` take effect once. See docs/http.md.

    A subclass sets `destination` and `scope`, and any field of `Options`, as class attributes.
    """

    destination: ClassVar[str | None] = None
    scope: ClassVar[Scope | None] = None
    using: ClassVar[str] = "default"
    """The alias of the connection."""

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._get_response = get_response
        self._using = self._setting("using", "default")
        self._options = self._configured()

    def __call__(self, request: HttpRequest) -> Any:
        method: str = request.method or ""
        keys = [request.META["HTTP_IDEMPOTENCY_KEY"]] if _has_key(request) else []
        try:
            message_id = self._options.message_id(method, keys, request)
            if message_id is None:
                return self._get_response(request)
            fingerprint = fingerprint_of(method, _path_and_query(request), self._body(request))
            identity = Identity(message_id, self._options.destination, fingerprint)
            return Attempt(self._options, self._using, identity, self._get_response).run(request)
        except Problem as problem:
            headers = problem.headers(self._options.retry_after)
            return _response(problem.status, headers, problem.body())

    def _configured(self) -> Options:
        names = [field.name for field in fields(Options)]
        given = {name: self._setting(name, None) for name in names}
        for name in ("destination", "scope"):
            if given[name] is None:
                raise ImproperlyConfigured(
                    f"set {name!r} in a subclass of IdempotencyMiddleware, or "
                    f"{name.upper()!r} in the setting IDEM_HTTP"
                )
        try:
            return Options(**{name: value for name, value in given.items() if value is not None})
        except (TypeError, ValueError) as error:
            raise ImproperlyConfigured(str(error)) from error

    def _setting(self, name: str, default: Any) -> Any:
        # A function that is a class attribute is not bound to the middleware.
        for base in type(self).__mro__:
            value = vars(base).get(name)
            if value is not None and base is not IdempotencyMiddleware:
                return value.__func__ if isinstance(value, staticmethod) else value
        value = getattr(settings, "IDEM_HTTP", {}).get(name.upper(), default)
        is_path = isinstance(value, str) and name in ("scope", "keep_statuses", "keep_headers")
        return import_string(value) if is_path else value

    def _body(self, request: HttpRequest) -> bytes:
        length = content_length_of(request.META.get("CONTENT_LENGTH") or "0")
        self._options.check_request_size(length)
        try:
            body: bytes = request.body
        except RequestDataTooBig as error:
            raise Problem(Kind.REQUEST_TOO_LARGE) from error
        except UnreadablePostError as error:
            raise Problem(Kind.UNREADABLE_REQUEST) from error
        except RawPostDataException as error:
            log.exception("a middleware above IdempotencyMiddleware reads request.POST")
            raise Problem(
                Kind.FAILED, "the service has read the body before it looked at the key"
            ) from error
        if len(body) < length:
            raise Problem(Kind.UNREADABLE_REQUEST)
        self._options.check_request_size(len(body))
        return body


class Attempt:
    """Claims a request, runs its view, records the response, and commits."""

    def __init__(
        self,
        options: Options,
        using: str,
        identity: Identity,
        get_response: Callable[[HttpRequest], Any],
    ) -> None:
        self._options = options
        self._using = using
        self._identity = identity
        self._get_response = get_response
        self._is_committed = False

    def run(self, request: HttpRequest) -> Any:
        """Returns the response after the commit. Raises Problem."""
        try:
            stack, outcome = retried(self._begin)
        except Exception as error:
            raise_caused(problem_of(error), error)
        if not isinstance(outcome, Claimed):
            _roll_back(stack)
            return self._not_claimed(outcome)
        try:
            response, recorded = self._handled(request)
        except BaseException:
            _roll_back(stack)
            raise
        if recorded is None:
            _roll_back(stack)
            return response
        self._commit(stack, recorded)
        return response

    def _begin(self) -> tuple[ExitStack, Outcome]:
        """Begins a transaction with the claim. The caller ends it with the stack."""
        identity = self._identity
        claim = statements.claim_and_forbid_commit(
            identity.message_id, identity.destination, identity.fingerprint
        )
        connection = connections[self._using]
        if not connection.in_atomic_block and not connection.get_autocommit():
            # The end of `atomic` would not commit.
            raise ImproperlyConfigured(f"the connection {self._using!r} is not in autocommit mode")
        with ExitStack() as stack:
            stack.enter_context(transaction.atomic(using=self._using, durable=True))
            outcome = Idem(connection).run(claim)
            return stack.pop_all(), outcome
        raise AssertionError("atomic has swallowed an exception")

    def _handled(self, request: HttpRequest) -> tuple[Any, Recorded | None]:
        """Runs the view in a savepoint. Returns its response, and the record if it has one."""
        # The first function of on_commit: an exception of a later one does not hide the commit.
        transaction.on_commit(self._note_commit, using=self._using)
        connection = connections[self._using]
        shared = RequestTransaction(connection)
        request.idem = shared
        response, recorded, is_kept = None, None, True
        try:
            with transaction.atomic(using=self._using):
                response = self._get_response(request)
                is_kept = self._options.keeps(response.status_code)
                if is_kept:
                    recorded = self._recorded(response)
                    keeps = keeps_writes(response.status_code, is_requested=shared.keeps_writes)
                    if keeps and connection.needs_rollback:
                        raise Problem(Kind.FAILED, "a statement of the request has failed")
                    transaction.set_rollback(not keeps, using=self._using)
        except Problem:
            raise
        except Exception as error:
            # A response that is not recorded is delivered, also if the view has ended the
            # transaction, so that its savepoint does not exist.
            if response is None:
                raise
            if recorded is not None:
                raise_caused(problem_of(error), error)
            if is_kept:
                log.exception("the response of a request with an idempotency key has failed")
                raise Problem(Kind.FAILED) from error
        return response, recorded

    def _recorded(self, response: Any) -> Recorded:
        body = b""
        if response.streaming:
            body = self._collected(response)
            response.streaming_content = [body]
        else:
            body = response.content
            self._check_response_size(len(body))
        return Recorded.of(
            self._identity.fingerprint,
            response.status_code,
            _headers_of(response),
            self._options.keep_headers,
            body,
        )

    def _collected(self, response: Any) -> bytes:
        body = bytearray()

        def add(chunk: bytes) -> None:
            body.extend(chunk)
            self._check_response_size(len(body))

        async def add_all() -> None:
            async for chunk in response.streaming_content:
                add(chunk)

        if response.is_async:
            async_to_sync(add_all)()
        else:
            for chunk in response.streaming_content:
                add(chunk)
        return bytes(body)

    def _check_response_size(self, size: int) -> None:
        if size > self._options.response_limit:
            raise Problem(Kind.RESPONSE_TOO_LARGE)

    def _commit(self, stack: ExitStack, recorded: Recorded) -> None:
        is_committing = False
        try:
            with stack:
                self._record(recorded)
                is_committing = True
        except Exception as error:
            if self._is_committed:
                log.exception("a function of on_commit failed after the commit of a request")
                return
            raise_caused(problem_of(error, is_committing=is_committing), error)

    def _record(self, recorded: Recorded) -> None:
        identity = self._identity
        idem = Idem(connections[self._using])
        # Wait for the reply: outside of the transaction, the functions of the journal would commit
        # by themselves.
        idem.run(statements.ALLOW_COMMIT)
        begin = statements.begin_record(
            identity.message_id, identity.destination, identity.fingerprint
        )
        idem.run(begin)
        finish = statements.finish_record(identity.message_id, identity.destination, recorded)
        idem.run(finish)

    def _note_commit(self) -> None:
        self._is_committed = True

    def _not_claimed(self, outcome: Outcome) -> HttpResponse:
        match outcome:
            case InProgress():
                raise Problem(Kind.IN_PROGRESS)
            case Mismatch():
                raise Problem(Kind.MISMATCH)
        identity = self._identity
        calls = statements.calls(identity.message_id, identity.destination)
        try:
            opened = transactions(connections[self._using])
            found = short_transaction(opened, lambda idem: idem.run(calls))
        except Exception as error:
            raise_caused(problem_of(error), error)
        recorded = replay(statements.recorded_in(found), identity.fingerprint)
        return _response(recorded.status, recorded.replayed_headers(), recorded.body)


def request_transaction(request: HttpRequest) -> RequestTransaction:
    """Returns the transaction of a protected request.

    Raises LookupError if the request is not protected.
    """
    found = getattr(request, "idem", None)
    if isinstance(found, RequestTransaction):
        return found
    raise LookupError("the request has no transaction of an IdempotencyMiddleware")


def keep_writes(request: HttpRequest) -> None:
    """Commits the writes of the view also with a status of 4xx."""
    request_transaction(request).keep_writes()


class RollBackError(Exception):
    """Ends the block of a transaction, so that it is rolled back."""


def _roll_back(stack: ExitStack) -> None:
    """Rolls back. An error is only logged, because the server rejects a COMMIT until the end."""
    try:
        stack.__exit__(RollBackError, RollBackError(), None)
    except Exception as error:
        log.debug("cannot roll back, so the server does it: %s", error)


def _has_key(request: HttpRequest) -> bool:
    return "HTTP_IDEMPOTENCY_KEY" in request.META


def _path_and_query(request: HttpRequest) -> bytes:
    """Returns the path and the query as the client has sent them, if the server knows them."""
    raw = request.META.get("RAW_URI") or request.META.get("REQUEST_URI")
    if raw:
        # A path can begin with two slashes, so only the absolute form has an authority.
        target = raw if raw.startswith("/") else _AUTHORITY.sub("", raw, count=1)
        path, _, query = target.partition("?")
    else:
        path = quote(request.path, safe=UNQUOTED)
        query = request.META.get("QUERY_STRING", "")
    return (f"{path}?{query}" if query else path).encode("latin-1", "replace")


def _headers_of(response: Any) -> Headers:
    cookies = [("set-cookie", cookie.OutputString()) for cookie in response.cookies.values()]
    return [*response.items(), *cookies]


def _response(status: int, headers: Headers, body: bytes) -> HttpResponse:
    response = HttpResponse(body, status=status)
    del response.headers["content-type"]
    if status not in (204, 304):
        response.headers["content-length"] = str(len(body))
    for name, value in headers:
        # HttpResponse has one value for each header. All headers but cookies can be joined.
        if name == "set-cookie":
            response.cookies.load(value)
        elif name in response.headers:
            response.headers[name] = f"{response.headers[name]}, {value}"
        else:
            response.headers[name] = value
    return response
