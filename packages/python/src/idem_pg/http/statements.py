"""The statements of a protected request."""

from __future__ import annotations

from collections.abc import Iterable

from ..external_calls import ExternalCall
from ..outcomes import Outcome
from ..results import CLAIM, claim_of
from ..statements import Call, Statement
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
    call = Call.of("idem_claim", identity.message_id, identity.destination)
    call.add("boolean", False).option("fingerprint", "bytea", identity.fingerprint)
    return call.returning(f"{CLAIM}, idem_forbid_commit()", claim_of)


def record(identity: Identity, recorded: Recorded) -> Statement[None]:
    """Records the response in the transaction of FORBID_COMMIT, and allows its COMMIT.

    It is one statement, so that it has no effect outside of the transaction, where
    `idem_allow_commit` fails and the other functions would commit by themselves. If the record
    fails, COMMIT stays forbidden, because `idem_allow_commit` is the last function.
    """
    message_id, destination = identity.message_id, identity.destination
    begin = Call.of("idem_begin_call", message_id, destination).text(STEP)
    begin.json_option("request", journal_request(identity.fingerprint))
    finish = Call.of("idem_finish_call", message_id, destination).text(STEP)
    finish.response(recorded.to_json())
    return finish.after(begin, "idem_allow_commit()")


def recorded_in(found: Iterable[ExternalCall]) -> Recorded | None:
    """Returns the recorded response in the journal of a request, or None."""
    for call in found:
        if call.step == STEP and call.state == "done":
            return Recorded.from_json(call.response)
    return None
