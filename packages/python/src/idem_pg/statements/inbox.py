"""The durable inbox."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from ..effects import is_bytes, object_of
from ..ids import MessageId
from ..leases import Held
from ..messages import ReceivedMessage
from .call import Call, Statement


def receive(
    message_id: MessageId,
    destination: str,
    payload: Any,
    headers: Mapping[str, Any] | None,
    key: str | None,
    deliver_after: datetime | None,
    type: str | None,
    content_type: str | None,
) -> Statement[bool]:
    call = Call("idem_receive_bytes" if is_bytes(payload) else "idem_receive")
    call.id(message_id).text(destination)
    if is_bytes(payload):
        call.add("bytea", bytes(payload))
    else:
        call.json(payload)
    call.json_option("headers", object_of(headers))
    call.option("key", "text", key).option("deliver_after", "timestamptz", deliver_after)
    return call.option("type", "text", type).option("content_type", "text", content_type).scalar()


def next_messages(
    destination: str, max_messages: int, lease: timedelta, max_bytes: int | None
) -> Statement[list[ReceivedMessage]]:
    asked_at = time.monotonic()

    def received(row: Sequence[Any]) -> ReceivedMessage:
        return ReceivedMessage(
            held=Held(row[2], destination, row[0], row[9], row[11], lease, asked_at),
            seq=row[1],
            key=row[3],
            type=row[4],
            payload=bytes(row[5]),
            content_type=row[6],
            headers=None if row[7] is None else json.loads(row[7]),
            traceparent=row[8],
            received_at=row[10],
            lease_expired=row[12],
        )

    call = Call("idem_next").text(destination).add("integer", max_messages).add("interval", lease)
    columns = (
        "token, seq, id, key, type, payload, content_type, CAST(headers AS text), traceparent, "
        "attempt, received_at, last_error, lease_expired"
    )
    call.option("max_bytes", "bigint", max_bytes)
    return call.returning(columns, lambda rows: [received(row) for row in rows])


def next_wait(destination: str, timeout_ms: int) -> Statement[bool]:
    return Call("idem_next_wait").text(destination).add("integer", timeout_ms).scalar()
