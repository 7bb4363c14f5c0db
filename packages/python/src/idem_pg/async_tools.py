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
from .external_calls import Begun
from .functions import Functions
from .leases import DEFAULT_LEASE, Exhausted
from .once import AsyncQuery, CallRefusedError, OnUnknown, UnknownResultError
from .outcomes import Duplicate
from .tool_rules import (
    STEP,
    Tool,
    ToolCall,
    ToolFailedError,
    mismatch,
    not_leased,
    not_recorded,
)
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
      unique. None: the ids are unique everywhere, as UUIDs are. With or without a scope, an id
      that spells a UUID is a text: upper and lower case differ.
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
            if isinstance(leased, Exhausted):
                return await _without_attempt(opened, leased, call)
            if not isinstance(leased, AsyncLease):
                raise not_leased(call, leased)
            is_run = False

            async def run(key: str) -> Any:
                nonlocal is_run
                is_run = True
                return await function(*args, **tool.with_key(options, key))

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
                    if is_run:
                        # The attempt counts, so a call whose result is not recorded has an end.
                        raise
                    leased.give_back()
                    raise mismatch(call, error) from error
            raise refused

        called.__signature__ = tool.signature  # type: ignore[attr-defined]
        return called

    return decorate


async def _without_attempt(opened: AsyncTransactions, exhausted: Exhausted, call: ToolCall) -> Any:
    """Returns the result of an attempt that died before it completed the message."""
    held = exhausted.held
    try:
        begun = await _find(opened, held.destination, call, held.token)
    except ToolFailedError:
        await short_transaction(opened, lambda idem: idem.release(held))
        raise
    if begun is None:
        # Otherwise the call would seem to be in progress.
        reason = held.last_error or "no attempt is left"
        await short_transaction(opened, lambda idem: idem.release(held, reason, final=True))
        raise not_leased(call, exhausted)
    async with AsyncLease(opened, held):
        pass  # The end of the block completes the message.
    return _result_of(begun)


async def _recorded(opened: AsyncTransactions, destination: str, call: ToolCall) -> Any:
    """Returns the result that an earlier call has recorded."""
    begun = await _find(opened, destination, call)
    if begun is None:
        raise not_recorded(call)
    return _result_of(begun)


def _result_of(begun: Begun) -> Any:
    if begun.state == "failed":
        raise CallRefusedError(begun.error)
    return begun.response


async def _find(
    opened: AsyncTransactions, destination: str, call: ToolCall, token: int | None = None
) -> Begun | None:
    """Returns the call if it has a result."""

    async def find(idem: Functions) -> Begun | None:
        known = await idem.calls(call.message_id, destination)
        if not any(entry.step == STEP and entry.state in ("done", "failed") for entry in known):
            return None
        # Compares the arguments. The step has ended already, so this writes nothing.
        return await idem.begin_call(call.message_id, destination, STEP, call.request, token=token)

    try:
        return await short_transaction(opened, find)
    except IdemError as error:
        raise mismatch(call, error) from error
