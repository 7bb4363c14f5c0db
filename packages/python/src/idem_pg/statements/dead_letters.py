"""Dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..effects import object_of
from ..ids import MessageId
from .call import Call, Statement


def reject(
    message_id: MessageId | None,
    destination: str,
    payload: bytes,
    error: str,
    headers: Mapping[str, Any] | None,
    key: str | None,
    type: str | None,
    content_type: str | None,
    source: str | None,
) -> Statement[bool]:
    call = Call("idem_reject")
    if message_id is None:
        call.add("text", None)
    else:
        call.id(message_id)
    call.text(destination).add("bytea", bytes(payload)).text(error)
    call.json_option("headers", object_of(headers))
    call.option("key", "text", key).option("type", "text", type)
    call.option("content_type", "text", content_type).option("source", "text", source)
    return call.scalar()
