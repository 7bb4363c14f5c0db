"""Dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

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


def requeue(message_id: MessageId, destination: str) -> Statement[bool]:
    return Call("idem_requeue").id(message_id).text(destination).scalar()


def requeue_all(destination: str, error_like: str, max_messages: int) -> Statement[int]:
    call = Call("idem_requeue_all").text(destination)
    return call.text(error_like).add("integer", max_messages).scalar()


def discard(message_id: MessageId, destination: str) -> Statement[bool]:
    return Call("idem_discard").id(message_id).text(destination).scalar()


def discard_all(destination: str, error_like: str, max_messages: int) -> Statement[int]:
    call = Call("idem_discard_all").text(destination)
    return call.text(error_like).add("integer", max_messages).scalar()


def forward(message_id: MessageId, destination: str, topic: str) -> Statement[UUID | None]:
    return Call("idem_forward").id(message_id).text(destination).text(topic).scalar()


def forward_all(destination: str, topic: str, error_like: str, max_messages: int) -> Statement[int]:
    call = Call("idem_forward_all").text(destination).text(topic)
    return call.text(error_like).add("integer", max_messages).scalar()
