"""The signature of a tool, and the errors of its calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from .errors import IdemError
from .ids import MessageId, id_text, scoped_id
from .leases import Exhausted
from .outcomes import Dead, Duplicate, InProgress, Settlement

STEP = "tool"
"""The step of the journal that has the result of a tool."""


class ToolBusyError(Exception):
    """The call is in progress in another process, or waits for a retry. Repeat it later."""

    settlement: ClassVar[Settlement] = "redeliver"

    def __init__(self, message_id: MessageId, retry_after: timedelta | None) -> None:
        super().__init__(f"the call {str(message_id)!r} is in progress")
        self.message_id = message_id
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message_id, self.retry_after)


class ToolFailedError(Exception):
    """The calls of the tool with this id have failed, and none of them is repeated."""

    settlement: ClassVar[Settlement] = "reject"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool: its id with its scope, and its other arguments."""

    message_id: str
    request: dict[str, Any]


class Tool:
    """The signature of a tool, and which of its parameters are not a part of the request."""

    def __init__(
        self,
        function: Callable[..., Any],
        scope: str | None,
        id: str,
        key: str | None,
        ignore: Collection[str],
    ) -> None:
        whole = _signature_of(function)
        self._scope = scope
        self._id = id
        self._key = key
        self._ignore = {scope or id, id, *ignore}
        for name in self._ignore | {key or id}:
            if name not in whole.parameters:
                raise TypeError(f"{function.__qualname__} has no parameter {name!r}")
        if key is not None and whole.parameters[key].kind is not inspect.Parameter.KEYWORD_ONLY:
            raise TypeError(f"the parameter {key!r} of {function.__qualname__} is not keyword-only")
        # The caller does not pass the key, and a model does not see it.
        seen = [parameter for name, parameter in whole.parameters.items() if name != key]
        self.signature = whole.replace(parameters=seen)

    def bind(self, args: tuple[Any, ...], options: dict[str, Any]) -> ToolCall:
        """Returns the call with these arguments. Raises TypeError if the arguments do not fit."""
        given = self.signature.bind_partial(*args, **options).arguments
        for what, name in (("id", self._id), ("scope", self._scope)):
            if name is not None and given.get(name) is None:
                raise TypeError(f"a call of a tool needs its {what} as the argument {name!r}")
        bound = self.signature.bind(*args, **options)
        bound.apply_defaults()
        request = {
            name: value for name, value in bound.arguments.items() if name not in self._ignore
        }
        scope = None if self._scope is None else id_text(bound.arguments[self._scope])
        return ToolCall(scoped_id(scope, bound.arguments[self._id]), request)

    def with_key(self, options: dict[str, Any], key: str) -> dict[str, Any]:
        """Returns the arguments by name, with the idempotency key if it has a parameter."""
        return options if self._key is None else options | {self._key: key}


def _signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Returns the signature, with types instead of their names, if all names are known."""
    try:
        return inspect.signature(function, eval_str=True)
    except NameError:
        return inspect.signature(function)


def not_recorded(call: ToolCall) -> Exception:
    """Returns the error of a call that was claimed without a result."""
    text = f"the call {call.message_id!r} was processed, and its result is not recorded"
    return ToolFailedError(text)


def not_leased(call: ToolCall, other: Exhausted | Duplicate | InProgress | Dead) -> Exception:
    """Returns the error of a call that cannot begin."""
    if isinstance(other, InProgress):
        return ToolBusyError(call.message_id, other.retry_after)
    return ToolFailedError(f"the call {call.message_id!r} has no attempt left")


def mismatch(call: ToolCall, error: IdemError) -> Exception:
    """Returns the error of a call that was begun with other arguments."""
    if error.sqlstate != "23000":
        return error
    text = f"the call {call.message_id!r} was made before with other arguments"
    return ToolFailedError(text)
