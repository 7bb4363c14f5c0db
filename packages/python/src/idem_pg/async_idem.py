"""The functions of idem in the transaction of a connection.

`make_sync.py` writes `idem.py` from `async_idem.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from .effects import Effect, Effects, RecordedEffect
from .executors import async_executor, async_run
from .external_calls import Begun, ExternalCall
from .ids import MessageId
from .leases import DEFAULT_LEASE, Acquired, Held
from .messages import OutgoingMessage, ReceivedMessage
from .outcomes import Outcome
from .statements import Statement, claims, dead_letters, inbox, journal, leases, relay
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

    async def hand_over(
        self, relay_name: str, topics: Sequence[str], *, partition: int = 0, max_effects: int = 1000
    ) -> int:
        """Receives effects for the destinations of their topics' names."""
        return await self.run(inbox.hand_over(relay_name, topics, partition, max_effects))

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

    async def requeue(self, message_id: MessageId, destination: str) -> bool:
        """Makes a dead letter due again, with all its attempts."""
        return await self.run(dead_letters.requeue(message_id, destination))

    async def requeue_all(
        self, destination: str, *, error_like: str = "%", max_messages: int = 1000
    ) -> int:
        """Requeues the oldest dead letters. Returns their number."""
        return await self.run(dead_letters.requeue_all(destination, error_like, max_messages))

    async def discard(self, message_id: MessageId, destination: str) -> bool:
        """Deletes a dead letter and claims its message."""
        return await self.run(dead_letters.discard(message_id, destination))

    async def discard_all(
        self, destination: str, *, error_like: str = "%", max_messages: int = 1000
    ) -> int:
        """Discards the oldest dead letters. Returns their number."""
        return await self.run(dead_letters.discard_all(destination, error_like, max_messages))

    async def forward(self, message_id: MessageId, destination: str, topic: str) -> UUID | None:
        """Sends a dead letter to a topic, and deletes it. Returns the new message id."""
        return await self.run(dead_letters.forward(message_id, destination, topic))

    async def forward_all(
        self, destination: str, topic: str, *, error_like: str = "%", max_messages: int = 1000
    ) -> int:
        """Forwards the oldest dead letters. Returns their number."""
        return await self.run(
            dead_letters.forward_all(destination, topic, error_like, max_messages)
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

    # Relays.

    async def relay_next(
        self,
        relay_name: str,
        *,
        partition: int = 0,
        max_effects: int = 100,
        lease: timedelta = DEFAULT_LEASE,
        max_bytes: int | None = None,
    ) -> list[OutgoingMessage]:
        """Leases the next effects of a relay, and returns them in order."""
        return await self.run(
            relay.relay_next(relay_name, partition, max_effects, lease, max_bytes)
        )

    async def relay_partitions(self, relay_name: str) -> int:
        """Returns the number of partitions, which are numbered from 0."""
        return await self.run(relay.relay_partitions(relay_name))

    async def relay_extend(
        self, relay_name: str, partition: int, token: int, lease: timedelta = DEFAULT_LEASE
    ) -> int:
        """Extends the lease of a batch. Returns the new token."""
        return await self.run(relay.relay_extend(relay_name, partition, token, lease))

    async def relay_ack(self, relay_name: str, partition: int, token: int) -> None:
        """Acknowledges a batch: its effects were published."""
        return await self.run(relay.relay_ack(relay_name, partition, token))

    async def relay_park(
        self, relay_name: str, partition: int, token: int, message_id: UUID, error: str
    ) -> None:
        """Parks one effect of a batch, so that the others are delivered."""
        return await self.run(relay.relay_park(relay_name, partition, token, message_id, error))

    async def relay_wait(self, timeout_ms: int = 1000) -> bool:
        """Waits until there may be effects. False after the timeout."""
        return await self.run(relay.relay_wait(timeout_ms))
