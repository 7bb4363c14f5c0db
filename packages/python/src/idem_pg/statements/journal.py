"""The journal of external calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ..external_calls import Begun, ExternalCall
from ..ids import MessageId
from .call import Call, Rows, Statement


def begin_call(
    message_id: MessageId, destination: str, step: str, request: Any, token: int | None
) -> Statement[Begun]:
    call = _begin(message_id, destination, step, request).option("token", "bigint", token)
    columns = (
        "CAST(state AS text), CAST(idempotency_key AS text), CAST(response AS text), attempt, "
        "begun_at, error"
    )

    def decode(rows: Rows) -> Begun:
        state, key, response, attempt, begun_at, error = rows[0]
        return Begun(state, key, _json(response), attempt, begun_at, error)

    return call.returning(columns, decode)


def finish_call(
    message_id: MessageId, destination: str, step: str, response: Any
) -> Statement[None]:
    return _finish(message_id, destination, step, response).nothing()


def record_call(
    message_id: MessageId, destination: str, step: str, request: Any, response: Any
) -> Statement[None]:
    """Begins and finishes a call, and allows COMMIT after `idem_forbid_commit`.

    It is one statement, so that it has no effect outside of the transaction, where
    `idem_allow_commit` fails and the other functions would commit by themselves. If the record
    fails, COMMIT stays forbidden, because `idem_allow_commit` is the last function.
    """
    finish = _finish(message_id, destination, step, response)
    return finish.after(_begin(message_id, destination, step, request), "idem_allow_commit()")


def fail_call(
    message_id: MessageId, destination: str, step: str, error: str, retryable: bool
) -> Statement[None]:
    call = Call("idem_fail_call").id(message_id).text(destination).text(step).text(error)
    return call.add("boolean", retryable).nothing()


def calls(message_id: MessageId, destination: str) -> Statement[list[ExternalCall]]:
    columns = (
        "step, CAST(state AS text), attempt, begun_at, ended_at, CAST(response AS text), error"
    )

    def decode(rows: Rows) -> list[ExternalCall]:
        return [_external_call(row) for row in rows]

    return Call("idem_calls").id(message_id).text(destination).returning(columns, decode)


def _begin(message_id: MessageId, destination: str, step: str, request: Any) -> Call:
    call = Call("idem_begin_call").id(message_id).text(destination).text(step)
    return call.json_option("request", request)


def _finish(message_id: MessageId, destination: str, step: str, response: Any) -> Call:
    call = Call("idem_finish_call").id(message_id).text(destination).text(step)
    return call.json_option("response", response)


def _external_call(row: Sequence[Any]) -> ExternalCall:
    step, state, attempt, begun_at, ended_at, response, error = row
    return ExternalCall(step, state, attempt, begun_at, ended_at, _json(response), error)


def _json(text: str | None) -> Any:
    return None if text is None else json.loads(text)
