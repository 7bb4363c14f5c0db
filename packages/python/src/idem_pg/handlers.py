"""A decorator for handlers that get a connection."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, overload

from .blocking import awaitable, finished
from .connections import run_last
from .errors import IdemError
from .executors import SYNCHRONOUS
from .functions import Functions
from .idem import AsyncIdem
from .ids import MessageId
from .outcomes import Duplicate
from .statements import Call, Statement

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")


class idempotent:  # noqa: N801
    """Claims the message before a handler runs. The first argument of the handler is a connection.

        @idempotent(destination="billing.charge", id=lambda payment: payment.id)
        def charge(connection: psycopg.Connection, payment: Payment) -> Receipt: ...

    `id` gets the other arguments. For a duplicate the handler does not run, and the result is
    `Duplicate()`. The caller begins and commits the transaction. A handler that is a coroutine
    function gets the connection of an asynchronous driver. If the handler has caught the error of a
    statement, so that nothing would be committed, an IdemError with SQLSTATE 25P02 is raised. If it
    has rolled back, so that the claim is gone, an IdemError with SQLSTATE 2D000 is raised.
    """

    def __init__(self, *, destination: str, id: Callable[..., MessageId]) -> None:
        self._destination = destination
        self._id = id

    @overload
    def __call__(
        self, handler: Callable[Concatenate[C, P], Coroutine[Any, Any, T]]
    ) -> Callable[Concatenate[C, P], Coroutine[Any, Any, T | Duplicate]]: ...

    @overload
    def __call__(
        self, handler: Callable[Concatenate[C, P], T]
    ) -> Callable[Concatenate[C, P], T | Duplicate]: ...

    def __call__(self, handler: Any) -> Any:
        if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
            raise TypeError("a generator would run after the claim: use a function")
        if inspect.iscoroutinefunction(handler):
            return self._asynchronous(handler)
        return self._synchronous(handler)

    def _synchronous(self, handler: Callable[..., T]) -> Callable[..., T | Duplicate]:
        blocking_handler = awaitable(handler)

        @functools.wraps(handler)
        def claimed(connection: Any, /, *args: Any, **options: Any) -> T | Duplicate:
            # A coroutine would turn a StopIteration that `id` raises into a RuntimeError.
            message_id = self._id(*args, **options)
            idem = Functions(connection, SYNCHRONOUS, "Idem")
            work = functools.partial(blocking_handler, connection, *args, **options)
            return finished(self._once(idem, connection, message_id, work))

        return claimed

    def _asynchronous(
        self, handler: Callable[..., Awaitable[T]]
    ) -> Callable[..., Awaitable[T | Duplicate]]:
        @functools.wraps(handler)
        async def claimed(connection: Any, /, *args: Any, **options: Any) -> T | Duplicate:
            message_id = self._id(*args, **options)
            work = functools.partial(handler, connection, *args, **options)
            return await self._once(AsyncIdem(connection), connection, message_id, work)

        return cast("Callable[..., Awaitable[T | Duplicate]]", claimed)

    async def _once(
        self,
        idem: Functions,
        connection: Any,
        message_id: MessageId,
        work: Callable[[], Awaitable[T]],
    ) -> T | Duplicate:
        """Claims the message, and works. Fails if the work has lost the claim."""
        if not await idem.try_claim(message_id, self._destination):
            return Duplicate()
        result = await work()
        probe: Statement[bool] = Call.of("idem_is_claimed", message_id, self._destination).scalar()
        if not await run_last(idem, connection, probe):
            raise IdemError(
                "the handler has ended the transaction, so the claim is gone",
                "2D000",
                "Let the caller end the transaction, or roll back to a savepoint.",
            )
        return result
