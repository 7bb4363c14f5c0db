"""The columns of results, and how their rows are read."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from .effects import RecordedEffect
from .external_calls import Begun, ExternalCall
from .ids import MessageId
from .leases import Acquired, Exhausted, Held
from .messages import ReceivedMessage
from .outcomes import Dead, Duplicate, InProgress, Outcome, outcome_of
from .statements import Rows

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def microseconds(expression: str) -> str:
    """Returns the SQL for a time or an interval as a number.

    A driver reads their texts, which depend on DateStyle, IntervalStyle and the time zone.
    """
    return f"CAST(EXTRACT(EPOCH FROM {expression}) * 1000000 AS bigint)"


def _duration(number: int | None) -> timedelta | None:
    return None if number is None else timedelta(microseconds=number)


def _time(number: int) -> datetime:
    return _EPOCH + timedelta(microseconds=number)


def _optional_time(number: int | None) -> datetime | None:
    return None if number is None else _time(number)


def duration_of(rows: Rows) -> timedelta | None:
    return _duration(rows[0][0])


CLAIM = f"CAST(outcome AS text), {microseconds('handled_at')}"


def claim_of(rows: Rows) -> Outcome:
    return outcome_of(rows[0][0], _optional_time(rows[0][1]))


EFFECTS = (
    "message_id, ordinal, topic, key, type, payload, content_type, CAST(headers AS text), "
    f"traceparent, {microseconds('deliver_after')}, {microseconds('recorded_at')}"
)


def effects_of(rows: Rows) -> list[RecordedEffect]:
    return [
        RecordedEffect(
            message_id=row[0],
            ordinal=row[1],
            topic=row[2],
            key=row[3],
            type=row[4],
            payload=bytes(row[5]),
            content_type=row[6],
            headers=_json(row[7]),
            traceparent=row[8],
            deliver_after=_optional_time(row[9]),
            recorded_at=_time(row[10]),
        )
        for row in rows
    ]


LEASE = f"CAST(outcome AS text), token, attempt, {microseconds('retry_after')}, last_error"


def lease_of(
    message_id: MessageId, destination: str, lease: timedelta
) -> Callable[[Rows], Acquired]:
    asked_at = time.monotonic()

    def decode(rows: Rows) -> Acquired:
        outcome, token, attempt, retry_after, last_error = rows[0]
        match outcome:
            case "duplicate":
                return Duplicate()
            case "in_progress":
                return InProgress(_duration(retry_after))
            case "dead":
                return Dead()
        held = Held(message_id, destination, token, attempt, last_error, lease, asked_at)
        match outcome:
            case "acquired":
                return held
            case "exhausted":
                return Exhausted(held)
        raise ValueError(f"the extension is newer than this package: outcome {outcome}")

    return decode


MESSAGES = (
    "token, seq, id, key, type, payload, content_type, CAST(headers AS text), traceparent, "
    f"attempt, {microseconds('received_at')}, last_error, lease_expired"
)


def messages_of(destination: str, lease: timedelta) -> Callable[[Rows], list[ReceivedMessage]]:
    asked_at = time.monotonic()

    def decode(row: Sequence[Any]) -> ReceivedMessage:
        return ReceivedMessage(
            held=Held(row[2], destination, row[0], row[9], row[11], lease, asked_at),
            seq=row[1],
            key=row[3],
            type=row[4],
            payload=bytes(row[5]),
            content_type=row[6],
            headers=_json(row[7]),
            traceparent=row[8],
            received_at=_time(row[10]),
            lease_expired=row[12],
        )

    return lambda rows: [decode(row) for row in rows]


BEGUN = (
    "CAST(state AS text), CAST(idempotency_key AS text), CAST(response AS text), attempt, "
    f"{microseconds('begun_at')}, error"
)


def begun_of(rows: Rows) -> Begun:
    state, key, response, attempt, begun_at, error = rows[0]
    return Begun(state, key, _json(response), attempt, _optional_time(begun_at), error)


CALLS = (
    f"step, CAST(state AS text), attempt, {microseconds('begun_at')}, "
    f"{microseconds('ended_at')}, CAST(response AS text), error"
)


def calls_of(rows: Rows) -> list[ExternalCall]:
    return [
        ExternalCall(
            step, state, attempt, _time(begun_at), _optional_time(ended_at), _json(response), error
        )
        for step, state, attempt, begun_at, ended_at, response, error in rows
    ]


def _json(text: str | None) -> Any:
    return None if text is None else json.loads(text)
