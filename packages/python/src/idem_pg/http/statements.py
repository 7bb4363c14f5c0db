"""The statements of a protected request."""

from __future__ import annotations

from collections.abc import Iterable

from ..external_calls import Begun, ExternalCall
from ..outcomes import Outcome, outcome_of
from ..statements import Statement, journal
from ..statements.call import Call
from .fingerprint import journal_request
from .recorded import Recorded

STEP = "http-response"
"""The step of the journal that has the response."""

SAVEPOINT = "idem_http"
"""The savepoint after the claim and before the handler.

If the handler has ended the transaction, it does not exist, so UNDO_WRITES and KEEP_WRITES fail.
"""


SET_SAVEPOINT = f"SAVEPOINT {SAVEPOINT}"
UNDO_WRITES = f"ROLLBACK TO SAVEPOINT {SAVEPOINT}"
KEEP_WRITES = f"RELEASE SAVEPOINT {SAVEPOINT}"

FORBID_COMMIT: Statement[None] = Call("idem_forbid_commit").nothing()
ALLOW_COMMIT: Statement[None] = Call("idem_allow_commit").nothing()


def claim_and_forbid_commit(
    message_id: str, destination: str, fingerprint: bytes
) -> Statement[Outcome]:
    """Claims without waiting, and forbids COMMIT until ALLOW_COMMIT."""
    call = Call("idem_claim").id(message_id).text(destination).add("boolean", False)
    return call.option("fingerprint", "bytea", fingerprint).returning(
        "CAST(outcome AS text), handled_at, idem_forbid_commit()",
        lambda rows: outcome_of(rows[0][0], rows[0][1]),
    )


def begin_record(message_id: str, destination: str, fingerprint: bytes) -> Statement[Begun]:
    """Begins the journal entry. SQLSTATE 23000 if it was begun for another request."""
    request = journal_request(fingerprint)
    return journal.begin_call(message_id, destination, STEP, request, None)


def finish_record(message_id: str, destination: str, recorded: Recorded) -> Statement[None]:
    return journal.finish_call(message_id, destination, STEP, recorded.to_json())


def calls(message_id: str, destination: str) -> Statement[list[ExternalCall]]:
    return journal.calls(message_id, destination)


def recorded_in(found: Iterable[ExternalCall]) -> Recorded | None:
    """Returns the recorded response in the journal of a request, or None."""
    for call in found:
        if call.step == STEP and call.state == "done":
            return Recorded.from_json(call.response)
    return None
