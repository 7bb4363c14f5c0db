"""The functions of idem in the transaction of a connection.

`make_sync.py` writes `idem.py` from `async_idem.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from .effects import Effect, Effects, RecordedEffect
from .executors import async_executor, async_run
from .external_calls import Begun, ExternalCall
from .ids import MessageId
from .leases import DEFAULT_LEASE, Acquired, Held
from .messages import ReceivedMessage
from .outcomes import Outcome
from .statements import Statement, claims, dead_letters, inbox, journal, leases
from .statements import effects as effect_statements

T = TypeVar("T")


class AsyncIdem:
    """idem's functions on a connection, cursor or session in whose transaction the work is done.

    It never begins, commits, rolls back or retries. Every method raises IdemError for an error of
    the server.

    - `Idem` accepts a connection or cursor of psycopg, a Connection or Session of SQLAlchemy, and
      the connection of Django.
    - `AsyncIdem` accepts a connection of asyncpg, an AsyncConnection or AsyncCursor of psycopg, and
      an AsyncConnection or AsyncSession of SQLAlchemy.
    """

    def __init__(self, connection: Any) -> None:
        self._execute = async_executor(connection)

    async def run(self, statement: Statement[T]) -> T:
        """Executes a statement of `idem_pg.statements`."""
        return await async_run(self._execute, statement)

    async def claim(
        self,
        message_id: MessageId,
        destination: str,
        *,
        wait: bool = True,
        fingerprint: bytes | None = None,
        sent_at: datetime | None = None,
    ) -> Outcome:
        """Claims a message, and returns the outcome.

        `wait=False` returns InProgress in place of waiting for a concurrent claimer. A
        `fingerprint` has 1 to 64 bytes.
        """
        return await self.run(claims.claim(message_id, destination, wait, fingerprint, sent_at))

    async def try_claim(self, message_id: MessageId, destination: str) -> bool:
        """Returns whether this transaction has claimed the message. False is a duplicate."""
        return await self.run(claims.try_claim(message_id, destination))

    async def try_claim_batch(self, ids: Iterable[MessageId], destination: str) -> list[bool]:
        """Claims many messages. The results are in the order of the ids."""
        return await self.run(claims.try_claim_batch(ids, destination))

    async def is_claimed(self, message_id: MessageId, destination: str) -> bool:
        """Returns whether the message is claimed. Reads only, and works on a standby."""
        return await self.run(claims.is_claimed(message_id, destination))

    async def record(self, message_id: MessageId, destination: str, effects: Effects) -> list[UUID]:
        """Records the outgoing messages of a claim, and returns their message ids."""
        return await self.run(effect_statements.record(message_id, destination, effects))

    async def try_record(self, message_id: MessageId, destination: str, effects: Effects) -> bool:
        """Claims a message and records its effects. Returns False for a duplicate."""
        return await self.run(effect_statements.try_record(message_id, destination, effects))

    async def effects(self, message_id: MessageId, destination: str) -> list[RecordedEffect]:
        """Returns the effects that the first execution of the message recorded."""
        return await self.run(effect_statements.effects(message_id, destination))

    async def send(self, effect: Effect) -> UUID:
        """Sends a message that does not result from another message. Returns its message id."""
        return await self.run(effect_statements.send(effect))

    # Leases: each of these methods needs a commit of its own before the work.

    async def acquire(
        self, message_id: MessageId, destination: str, lease: timedelta = DEFAULT_LEASE
    ) -> Acquired:
        """Acquires the lease of a message. Commit before the work begins."""
        return await self.run(leases.acquire(message_id, destination, lease))

    async def extend(self, held: Held) -> None:
        """Extends a lease by its duration from now. SQLSTATE 55000 if it is lost."""
        return await self.run(leases.extend(held))

    async def complete(self, held: Held, effects: Effects = ()) -> list[UUID]:
        """Turns the lease into the claim, and records the effects, in this transaction.

        SQLSTATE 55000 if the lease is lost.
        """
        return await self.run(leases.complete(held, effects))

    async def release(
        self, held: Held, error: str | None = None, *, final: bool = False
    ) -> timedelta | None:
        """Releases a lease. Returns the time until the next attempt, None if there is none.

        Without an error the attempt does not count.
        """
        return await self.run(leases.release(held, error, final))

    async def bury(
        self,
        held: Held,
        payload: bytes,
        error: str,
        *,
        headers: Mapping[str, Any] | None = None,
        key: str | None = None,
        type: str | None = None,
        content_type: str | None = None,
    ) -> None:
        """Stores a leased message of a broker as a dead letter."""
        return await self.run(leases.bury(held, payload, error, headers, key, type, content_type))

    # The durable inbox.

    async def receive(
        self,
        message_id: MessageId,
        destination: str,
        payload: Any,
        *,
        headers: Mapping[str, Any] | None = None,
        key: str | None = None,
        deliver_after: datetime | None = None,
        type: str | None = None,
        content_type: str | None = None,
    ) -> bool:
        """Stores a message. The payload is JSON or bytes. False if it is known already.

        Acknowledge the message after the commit.
        """
        return await self.run(
            inbox.receive(
                message_id, destination, payload, headers, key, deliver_after, type, content_type
            )
        )

    async def next(
        self,
        destination: str,
        *,
        max_messages: int = 1,
        lease: timedelta = DEFAULT_LEASE,
        max_bytes: int | None = None,
    ) -> list[ReceivedMessage]:
        """Leases due messages, and returns them in order. Commit before the work begins."""
        return await self.run(inbox.next_messages(destination, max_messages, lease, max_bytes))

    async def next_wait(self, destination: str, timeout_ms: int = 1000) -> bool:
        """Waits until `next` can return a message. False after the timeout."""
        return await self.run(inbox.next_wait(destination, timeout_ms))

    # Dead letters.

    async def reject(
        self,
        message_id: MessageId | None,
        destination: str,
        payload: bytes,
        error: str,
        *,
        headers: Mapping[str, Any] | None = None,
        key: str | None = None,
        type: str | None = None,
        content_type: str | None = None,
        source: str | None = None,
    ) -> bool:
        """Stores a message of a broker that is not leased as a dead letter.

        Acknowledge the message after the commit. False if it is a dead letter or was processed.
        """
        return await self.run(
            dead_letters.reject(
                message_id, destination, payload, error, headers, key, type, content_type, source
            )
        )

    # The journal of external calls: commit after `begin_call`, then make the call.

    async def begin_call(
        self,
        message_id: MessageId,
        destination: str,
        step: str,
        request: Any = None,
        *,
        token: int | None = None,
    ) -> Begun:
        """Begins an external call. SQLSTATE 23000 if the step was begun with another request."""
        return await self.run(journal.begin_call(message_id, destination, step, request, token))

    async def finish_call(
        self, message_id: MessageId, destination: str, step: str, response: Any = None
    ) -> None:
        """Records the response of an external call, as JSON."""
        return await self.run(journal.finish_call(message_id, destination, step, response))

    async def fail_call(
        self,
        message_id: MessageId,
        destination: str,
        step: str,
        error: str,
        *,
        retryable: bool = True,
    ) -> None:
        """Records that this attempt certainly had no effect, or that the call was rejected.

        After `retryable=False` the call is never repeated.
        """
        return await self.run(journal.fail_call(message_id, destination, step, error, retryable))

    async def calls(self, message_id: MessageId, destination: str) -> list[ExternalCall]:
        """Returns the external calls of a message."""
        return await self.run(journal.calls(message_id, destination))
