"""Outgoing messages: as the handler passes them, and as they were recorded."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Effect:
    """An outgoing message that results from processing a message.

    The payload is JSON, or bytes with a content type. `deliver_after` has a time zone.
    """

    topic: str
    payload: Any = field(repr=False)
    key: str | None = None
    type: str | None = None
    headers: Mapping[str, Any] | None = None
    message_id: UUID | None = None
    content_type: str | None = None
    deliver_after: datetime | None = None


@dataclass(frozen=True, slots=True)
class RecordedEffect:
    """An effect as it was recorded. A JSON payload is its UTF-8 text."""

    message_id: UUID
    ordinal: int
    topic: str
    key: str | None
    type: str | None
    payload: bytes = field(repr=False)
    content_type: str
    headers: dict[str, Any] | None
    traceparent: str | None
    deliver_after: datetime | None
    recorded_at: datetime

    def json(self) -> Any:
        """Returns the payload as JSON."""
        return json.loads(self.payload)


Effects = Effect | Iterable[Effect]


def is_bytes(payload: Any) -> bool:
    """Returns whether a payload is passed on as bytes. Every other payload is JSON."""
    return isinstance(payload, (bytes, bytearray, memoryview))


def json_text(value: Any) -> str:
    """Returns a value as JSON. Raises ValueError for NaN and infinity, which are not JSON."""
    return json.dumps(value, allow_nan=False)


def object_of(headers: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Returns headers as a JSON object. Raises TypeError if they are not a mapping."""
    if headers is not None and not isinstance(headers, Mapping):
        raise TypeError(f"headers are a mapping, not {headers!r}")
    return None if headers is None else dict(headers)


def json_copy(value: Any) -> Any:
    """Returns a value as JSON returns it: a tuple becomes a list, a key becomes a text."""
    return json.loads(json_text(value))


def list_of(effects: Effects) -> list[Effect]:
    """Returns the effects as a list. Raises TypeError for other values, for example a dict."""
    if isinstance(effects, (Effect, str, Mapping)) or not isinstance(effects, Iterable):
        return [ensure_effect(effects)]
    return [ensure_effect(effect) for effect in effects]


def ensure_effect(value: Any) -> Effect:
    """Returns the value. Raises TypeError if it is no effect."""
    if not isinstance(value, Effect):
        raise TypeError(f"an effect is an idem_pg.Effect, not {type(value).__qualname__}")
    return value


def text_of(effects: Effects) -> str:
    """Returns the effects as the text of a JSON array."""
    return json_text([_members(effect) for effect in list_of(effects)])


def _members(effect: Effect) -> dict[str, Any]:
    members: dict[str, Any] = {"topic": effect.topic}
    if is_bytes(effect.payload):
        members["payload_base64"] = base64.b64encode(effect.payload).decode()
    else:
        members["payload"] = effect.payload
    for name in _OPTIONAL:
        if (value := getattr(effect, name)) is not None:
            members[name] = _OPTIONAL[name](value)
    return members


def with_time_zone(name: str, value: datetime) -> datetime:
    """Returns the time. The server would read a naive one in the time zone of its session."""
    if value.utcoffset() is None:
        raise ValueError(f"{name} has no time zone")
    return value


def _deliver_after(value: datetime) -> str:
    return with_time_zone("deliver_after", value).isoformat()


_OPTIONAL: dict[str, Callable[[Any], Any]] = {
    "key": str,
    "type": str,
    "headers": object_of,
    "message_id": str,
    "content_type": str,
    "deliver_after": _deliver_after,
}
"""How the optional members of an effect become JSON."""
