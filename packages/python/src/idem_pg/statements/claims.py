"""Claims."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

from ..ids import MessageId, id_text
from ..outcomes import Outcome, outcome_of
from .call import Call, Statement


def claim(
    message_id: MessageId,
    destination: str,
    wait: bool,
    fingerprint: bytes | None,
    sent_at: datetime | None,
) -> Statement[Outcome]:
    call = Call("idem_claim").id(message_id).text(destination).add("boolean", wait)
    call.option("fingerprint", "bytea", fingerprint).option("sent_at", "timestamptz", sent_at)
    return call.returning(
        "CAST(outcome AS text), handled_at", lambda rows: outcome_of(rows[0][0], rows[0][1])
    )


def try_claim(message_id: MessageId, destination: str) -> Statement[bool]:
    return Call("idem_try_claim").id(message_id).text(destination).scalar()


def try_claim_batch(ids: Iterable[MessageId], destination: str) -> Statement[list[bool]]:
    if isinstance(ids, (str, bytes)):
        raise TypeError("try_claim_batch needs a list of ids, not one id")
    ids = list(ids)
    if ids and all(isinstance(message_id, UUID) for message_id in ids):
        call = Call("idem_try_claim_uuid_batch").add("uuid[]", ids)
    else:
        call = Call("idem_try_claim_batch").add(
            "text[]", [id_text(message_id) for message_id in ids]
        )
    return call.text(destination).scalar()


def is_claimed(message_id: MessageId, destination: str) -> Statement[bool]:
    return Call("idem_is_claimed").id(message_id).text(destination).scalar()
