"""A decorator for tools of AI agents and for other functions with an effect outside.

A model, a framework or a network repeats the call of a tool. `once` makes the call once for each
id, and returns the recorded result to every repeated call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Coroutine
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

from .async_lease import AsyncLease, async_lease
from .errors import IdemError
from .functions import Functions
from .leases import DEFAULT_LEASE, Exhausted
from .once import AsyncQuery, CallRefusedError, OnUnknown, UnknownResultError
from .outcomes import Duplicate
from .tool_rules import STEP, Tool, ToolCall, mismatch, not_leased, not_recorded
from .transactions import AsyncTransactions, async_transactions, short_transaction

P = ParamSpec("P")
T = TypeVar("T")
Function = Callable[P, Coroutine[Any, Any, T]]


def async_once(
    source: Any,
    destination: str,
    *,
    scope: str | None,
    id: str,
    on_unknown: OnUnknown | AsyncQuery,
    key: str | None = None,
    ignore: Collection[str] = (),
    lease_for: timedelta = DEFAULT_LEASE,
) -> Callable[[Function[P, T]], Function[P, T]]:
    """Makes each call of a function once.

    - `source` opens transactions: see `async_transactions`.
    - `scope` is the name of the parameter with the conversation or session, in which the ids are
      unique. None: the ids are unique everywhere, as UUIDs are.
    - `id` is the name of the parameter with the id of the call, for example the id that the model
      gave to its tool call. Calls with the same id in the same scope are the same call. If the ids
      change when the model repeats a call, pass `tool_call_key(…)`.
    - `on_unknown` decides what happens after a process died in the middle of a call.
    - `key` is the name of a parameter that gets the idempotency key for the external system. The
      caller does not see it.
    - `ignore` has the names of parameters that are no part of the request, for example a context.

    The other arguments and the result are JSON. Raises ToolBusyError if another process runs the
    same call, ToolFailedError if the id was used with other arguments, and CallRefusedError if the
    call was rejected or its result cannot be stored.

    The message id of a call is `by:N:SCOPE:ID`, where N is the number of bytes of the scope, or
    `all:ID` without a scope. `idem_finish_call` takes it, after a person has found a result.
    """
    opened = async_transactions(source)

    def decorate(function: Function[P, T]) -> Function[P, T]:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"{function.__qualname__}: use async_once for coroutine functions only")
        tool = Tool(function, scope, id, key, ignore)

        @functools.wraps(function)
        async def called(*args: P.args, **options: P.kwargs) -> Any:
            call = tool.bind(args, options)
            leased = await async_lease(opened, call.message_id, destination, lease_for)
            if isinstance(leased, Duplicate):
                return await _recorded(opened, destination, call)
            if not isinstance(leased, AsyncLease):
                if isinstance(leased, Exhausted):
                    await _give_up(opened, leased)
                raise not_leased(call, leased)
            failures: list[Exception] = []

            async def run(key: str) -> Any:
                try:
                    return await function(*args, **tool.with_key(options, key))
                except Exception as error:
                    failures.append(error)
                    raise

            async with leased:
                try:
                    return await leased.once(STEP, call.request, run, on_unknown=on_unknown)
                except CallRefusedError as error:
                    # The rejection is the result of the call, so the message is completed.
                    refused = error
                except UnknownResultError:
                    # A person records the result. Until then every call fails in this way.
                    leased.give_back()
                    raise
                except IdemError as error:
                    if error in failures:
                        raise
                    leased.give_back()
                    raise mismatch(call, error) from error
            raise refused

        called.__signature__ = tool.signature  # type: ignore[attr-defined]
        return called

    return decorate


async def _give_up(opened: AsyncTransactions, exhausted: Exhausted) -> None:
    """Releases the lease of a call without attempts. Otherwise it would seem to be in progress."""
    reason = exhausted.held.last_error or "no attempt is left"
    await short_transaction(opened, lambda idem: idem.release(exhausted.held, reason, final=True))


async def _recorded(opened: AsyncTransactions, destination: str, call: ToolCall) -> Any:
    """Returns the result that an earlier call has recorded."""

    async def find(idem: Functions) -> Any:
        known = await idem.calls(call.message_id, destination)
        if not any(entry.step == STEP for entry in known):
            raise not_recorded(call)
        # Compares the arguments. The step has begun already, so this writes nothing.
        return await idem.begin_call(call.message_id, destination, STEP, call.request)

    try:
        begun = await short_transaction(opened, find)
    except IdemError as error:
        raise mismatch(call, error) from error
    if begun.state == "failed":
        raise CallRefusedError(begun.error)
    if begun.state != "done":
        raise not_recorded(call)
    return begun.response
