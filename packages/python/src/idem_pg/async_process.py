"""Processes a message in a transaction of its own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

from .connections import discard, driver_of, has_ended, run_last
from .effects import Effects, text_of
from .errors import IdemError
from .executors import is_closed, raise_caused, translated
from .ids import MessageId
from .outcomes import Claimed, Duplicate, Expired, InProgress, Mismatch, Outcome, Settlement
from .results import CLAIM, claim_of
from .statements import Call, Statement
from .transactions import async_transactions, functions_of, retried, retry_delays


@dataclass(frozen=True, slots=True)
class Processed:
    """The message was processed now, and this is committed."""

    settlement: ClassVar[Settlement] = "acknowledge"
    message_ids: list[UUID]
    """The message ids of the effects, in order."""


async def async_process(
    source: Any,
    message_id: MessageId,
    destination: str,
    handler: Callable[[Any], Coroutine[Any, Any, Effects | None]],
    *,
    retries: int = 0,
    wait: bool = True,
    fingerprint: bytes | None = None,
    sent_at: datetime | None = None,
) -> Processed | Duplicate | InProgress | Mismatch | Expired:
    """Claims a message, runs the handler, and records its effects, all in one transaction.

    - `source` opens transactions: see `async_transactions`.
    - `handler` gets the connection or session, and returns effects or None. It does not run unless
      the message is claimed. It cannot commit: its COMMIT fails with SQLSTATE 2D000.
    - `retries` is how often the transaction is repeated after SQLSTATE 40001 or 40P01, or after its
      connection was lost before the COMMIT. The handler runs again, also after a conflict (40001,
      40P01) of another database that it uses, but not after a lost connection to it.
    - The other options are those of `claim`.

    An error of the handler rolls back, and is raised as it is. An error of a statement that the
    handler has caught is raised as an IdemError with SQLSTATE 25P02, because nothing would be
    committed. An error of the COMMIT is an IdemError, too. If its reply is lost, process the
    message again, and the claim decides.
    """
    if not isinstance(retries, int) or retries < 0:
        raise ValueError(f"retries is an integer from 0, not {retries!r}")
    opened = async_transactions(source)
    claim = _claim_and_forbid_commit(message_id, destination, wait, fingerprint, sent_at)
    is_handling = is_committing = is_connected = False

    async def work(connection: Any) -> Any:
        nonlocal is_handling, is_committing, is_connected
        idem = functions_of(opened, connection)
        outcome = await idem.run(claim)
        if not isinstance(outcome, Claimed):
            return outcome
        driver = await driver_of(connection)
        is_handling = True
        try:
            effects = await handler(connection)
        except Exception:
            # Then a lost connection is another one, which the handler uses.
            is_connected = not is_closed(driver)
            raise
        is_handling = False
        text = text_of(() if effects is None else effects)
        last = _record_and_allow_commit(message_id, destination, text)
        ids = await run_last(idem, connection, last)
        is_committing = True
        return Processed(ids)

    async def attempt() -> Any:
        nonlocal is_handling, is_committing, is_connected
        is_handling = is_committing = is_connected = False
        failed = None
        try:
            async with opened() as connection:
                try:
                    return await work(connection)
                except Exception as error:
                    failed = error
                    if has_ended(connection):
                        await discard(connection)
                    raise
        except Exception as error:
            # The rollback over a lost connection fails too. The first error tells more.
            raise_caused(failed or translated(error), error)

    def may_retry(error: Exception) -> bool:
        found = translated(error, is_of_handler=is_handling)
        if not isinstance(found, IdemError):
            return False
        return found.sqlstate in ("40001", "40P01") or (
            found.is_connection_lost and not is_committing and not is_connected
        )

    return await retried(opened, attempt, may_retry, retry_delays(1 + retries))


def _claim_and_forbid_commit(
    message_id: MessageId,
    destination: str,
    wait: bool,
    fingerprint: bytes | None,
    sent_at: datetime | None,
) -> Statement[Outcome]:
    """Claims, and forbids COMMIT until `_record_and_allow_commit` if the message is claimed."""
    call = Call.of("idem_claim", message_id, destination).add("boolean", wait)
    call.option("fingerprint", "bytea", fingerprint).time_option("sent_at", sent_at)
    forbid = "CASE WHEN outcome = 'claimed' THEN idem_forbid_commit() END"
    return call.returning(f"{CLAIM}, {forbid}", claim_of)


def _record_and_allow_commit(
    message_id: MessageId, destination: str, effects: str
) -> Statement[list[UUID]]:
    """One statement, so that COMMIT stays forbidden if the effects are not recorded."""
    record = Call.of("idem_record_effects", message_id, destination).add("jsonb", effects)
    return record.scalar_and("idem_allow_commit()")
