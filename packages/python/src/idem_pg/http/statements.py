"""The statements of a protected request."""

from __future__ import annotations

from collections.abc import Iterable

from ..external_calls import Begun, ExternalCall
from ..outcomes import Outcome, outcome_of
from ..statements import Statement, journal
from ..statements.call import Call
from .fingerprint import journal_request
from .identity import Identity
from .recorded import Recorded

STEP = "http-response"
"""The step of the journal that has the response."""

SAVEPOINT = "idem_http"
"""The savepoint after the claim and before the handler.

If the handler has ended the transaction, it does not exist, so UNDO_WRITES fails. It is not
released, because a COMMIT does that too.
"""


SET_SAVEPOINT = f"SAVEPOINT {SAVEPOINT}"
UNDO_WRITES = f"ROLLBACK TO SAVEPOINT {SAVEPOINT}"

FORBID_COMMIT: Statement[None] = Call("idem_forbid_commit").nothing()
ALLOW_COMMIT: Statement[None] = Call("idem_allow_commit").nothing()


def claim_and_forbid_commit(identity: Identity) -> Statement[Outcome]:
    """Claims without waiting, and forbids COMMIT until ALLOW_COMMIT or `record`."""
    call = Call("idem_claim").id(identity.message_id).text(identity.destination)
    call.add("boolean", False).option("fingerprint", "bytea", identity.fingerprint)
    return call.returning(
        "CAST(outcome AS text), handled_at, idem_forbid_commit()",
        lambda rows: outcome_of(rows[0][0], rows[0][1]),
    )


def record(identity: Identity, recorded: Recorded) -> Statement[None]:
    """Records the response in the transaction of FORBID_COMMIT, and allows its COMMIT."""
    request, response = journal_request(identity.fingerprint), recorded.to_json()
    return journal.record_call(identity.message_id, identity.destination, STEP, request, response)


def begin_record(identity: Identity) -> Statement[Begun]:
    """Begins the journal entry. SQLSTATE 23000 if it was begun for another request."""
    request = journal_request(identity.fingerprint)
    return journal.begin_call(identity.message_id, identity.destination, STEP, request, None)


def finish_record(identity: Identity, recorded: Recorded) -> Statement[None]:
    response = recorded.to_json()
    return journal.finish_call(identity.message_id, identity.destination, STEP, response)


def calls(identity: Identity) -> Statement[list[ExternalCall]]:
    return journal.calls(identity.message_id, identity.destination)


def recorded_in(found: Iterable[ExternalCall]) -> Recorded | None:
    """Returns the recorded response in the journal of a request, or None."""
    for call in found:
        if call.step == STEP and call.state == "done":
            return Recorded.from_json(call.response)
    return None
