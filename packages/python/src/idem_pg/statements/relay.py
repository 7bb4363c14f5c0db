"""Relays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from ..messages import OutgoingMessage
from .call import Call, Statement


def relay_next(
    relay: str, partition: int, max_effects: int, lease: timedelta, max_bytes: int | None
) -> Statement[list[OutgoingMessage]]:
    columns = (
        "token, seq, message_id, topic, key, type, payload, content_type, "
        "CAST(headers AS text), traceparent, recorded_at, source_destination"
    )
    call = Call("idem_relay_next").text(relay).add("integer", partition)
    call.add("integer", max_effects).add("interval", lease)
    call.option("max_bytes", "bigint", max_bytes)
    return call.returning(columns, lambda rows: [_outgoing(row) for row in rows])


def _outgoing(row: Sequence[Any]) -> OutgoingMessage:
    return OutgoingMessage(
        token=row[0],
        seq=row[1],
        message_id=row[2],
        topic=row[3],
        key=row[4],
        type=row[5],
        payload=bytes(row[6]),
        content_type=row[7],
        headers=None if row[8] is None else json.loads(row[8]),
        traceparent=row[9],
        recorded_at=row[10],
        source_destination=row[11],
    )


def relay_partitions(relay: str) -> Statement[int]:
    return Call("idem_relay_partitions").text(relay).scalar()


def relay_extend(relay: str, partition: int, token: int, lease: timedelta) -> Statement[int]:
    return _batch("idem_relay_extend", relay, partition, token).add("interval", lease).scalar()


def relay_ack(relay: str, partition: int, token: int) -> Statement[None]:
    return _batch("idem_relay_ack", relay, partition, token).nothing()


def relay_park(
    relay: str, partition: int, token: int, message_id: UUID, error: str
) -> Statement[None]:
    call = _batch("idem_relay_park", relay, partition, token)
    return call.add("uuid", message_id).text(error).nothing()


def relay_wait(timeout_ms: int) -> Statement[bool]:
    return Call("idem_relay_wait").add("integer", timeout_ms).scalar()


def _batch(function: str, relay: str, partition: int, token: int) -> Call:
    return Call(function).text(relay).add("integer", partition).add("bigint", token)
