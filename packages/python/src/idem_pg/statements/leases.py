"""Leases."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from ..effects import Effects, object_of, text_of
from ..ids import MessageId
from ..leases import Acquired, Exhausted, Held
from ..outcomes import Dead, Duplicate, InProgress
from .call import Call, Rows, Statement


def acquire(message_id: MessageId, destination: str, lease: timedelta) -> Statement[Acquired]:
    asked_at = time.monotonic()

    def decode(rows: Rows) -> Acquired:
        outcome, token, attempt, retry_after, last_error = rows[0]
        match outcome:
            case "duplicate":
                return Duplicate()
            case "in_progress":
                return InProgress(retry_after)
            case "dead":
                return Dead()
        held = Held(message_id, destination, token, attempt, last_error, lease, asked_at)
        match outcome:
            case "acquired":
                return held
            case "exhausted":
                return Exhausted(held)
        raise ValueError(f"the extension is newer than this package: outcome {outcome}")

    call = Call("idem_acquire").id(message_id).text(destination).add("interval", lease)
    columns = "CAST(outcome AS text), token, attempt, retry_after, last_error"
    return call.returning(columns, decode)


def extend(held: Held) -> Statement[None]:
    return _of("idem_extend", held).add("interval", held.duration).nothing()


def complete(held: Held, effects: Effects) -> Statement[list[UUID]]:
    return _of("idem_complete", held).add("jsonb", text_of(effects)).scalar()


def release(held: Held, error: str | None, final: bool) -> Statement[timedelta | None]:
    call = _of("idem_release", held).option("error", "text", error)
    return call.option("final", "boolean", final).scalar()


def bury(
    held: Held,
    payload: bytes,
    error: str,
    headers: Mapping[str, Any] | None,
    key: str | None,
    type: str | None,
    content_type: str | None,
) -> Statement[None]:
    call = _of("idem_bury", held).add("bytea", bytes(payload)).text(error)
    call.json_option("headers", object_of(headers))
    call.option("key", "text", key).option("type", "text", type)
    return call.option("content_type", "text", content_type).nothing()


def _of(function: str, held: Held) -> Call:
    return Call(function).id(held.message_id).text(held.destination).add("bigint", held.token)
