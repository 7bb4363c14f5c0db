"""Effects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from ..effects import Effect, Effects, RecordedEffect, is_bytes, object_of, text_of
from ..ids import MessageId
from .call import Call, Statement


def record(message_id: MessageId, destination: str, effects: Effects) -> Statement[list[UUID]]:
    call = Call("idem_record_effects").id(message_id).text(destination)
    return call.add("jsonb", text_of(effects)).scalar()


def try_record(message_id: MessageId, destination: str, effects: Effects) -> Statement[bool]:
    call = Call("idem_try_record").id(message_id).text(destination)
    return call.add("jsonb", text_of(effects)).scalar()


def effects(message_id: MessageId, destination: str) -> Statement[list[RecordedEffect]]:
    columns = (
        "message_id, ordinal, topic, key, type, payload, content_type, "
        "CAST(headers AS text), traceparent, deliver_after, recorded_at"
    )
    call = Call("idem_effects").id(message_id).text(destination)
    return call.returning(columns, lambda rows: [_recorded(row) for row in rows])


def _recorded(row: Sequence[Any]) -> RecordedEffect:
    return RecordedEffect(
        message_id=row[0],
        ordinal=row[1],
        topic=row[2],
        key=row[3],
        type=row[4],
        payload=bytes(row[5]),
        content_type=row[6],
        headers=None if row[7] is None else json.loads(row[7]),
        traceparent=row[8],
        deliver_after=row[9],
        recorded_at=row[10],
    )


def send(effect: Effect) -> Statement[UUID]:
    if effect.deliver_after is not None:
        raise ValueError("send does not support deliver_after: record the effect with a claim")
    call = Call("idem_send_bytes" if is_bytes(effect.payload) else "idem_send").text(effect.topic)
    if is_bytes(effect.payload):
        call.add("bytea", bytes(effect.payload))
    else:
        call.json(effect.payload)
    headers = object_of(effect.headers)
    call.option("key", "text", effect.key).option("type", "text", effect.type)
    call.json_option("headers", headers).option("message_id", "uuid", effect.message_id)
    return call.option("content_type", "text", effect.content_type).scalar()
