"""The functions of idem as coroutines, over a driver of either kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from . import results
from .effects import Effect, Effects, RecordedEffect, ensure_effect, is_bytes, text_of
from .executors import Kinds, executor, hide_parameters, raise_caused, translated
from .external_calls import Begun, ExternalCall
from .ids import MessageId, id_text
from .leases import DEFAULT_LEASE, Acquired, Held
from .messages import ReceivedMessage
from .outcomes import Outcome
from .statements import Call, Statement, storable

T = TypeVar("T")


class Functions:
    """The methods of `AsyncIdem`. Over a synchronous driver they block: see `blocking.py`."""

    def __init__(self, connection: Any, kinds: Kinds, wanted: str) -> None:
        self._execute = executor(connection, kinds, wanted)

    async def run(self, statement: Statement[T]) -> T:
        """Executes a statement. Raises IdemError for an error of the server."""
        try:
            rows = await self._execute(statement.sql, statement.parameters)
        except Exception as error:
            hide_parameters(error)
            raise_caused(translated(error), error)
        return statement.decode(rows)

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
        call = Call.of("idem_claim", message_id, destination).add("boolean", wait)
        call.option("fingerprint", "bytea", fingerprint).time_option("sent_at", sent_at)
        return await self.run(call.returning(results.CLAIM, results.claim_of))

    async def try_claim(self, message_id: MessageId, destination: str) -> bool:
        """Returns whether this transaction has claimed the message. False is a duplicate."""
        return await self.run(Call.of("idem_try_claim", message_id, destination).scalar())

    async def try_claim_batch(self, ids: Iterable[MessageId], destination: str) -> list[bool]:
        """Claims many messages. The results are in the order of the ids."""
        if isinstance(ids, (str, bytes)):
            raise TypeError("try_claim_batch needs a list of ids, not one id")
        ids = list(ids)
        if ids and all(isinstance(message_id, UUID) for message_id in ids):
            call = Call("idem_try_claim_uuid_batch").add("uuid[]", ids)
        else:
            texts = [id_text(message_id) for message_id in ids]
            call = Call("idem_try_claim_batch").add("text[]", texts)
        return await self.run(call.text(destination).scalar())

    async def is_claimed(self, message_id: MessageId, destination: str) -> bool:
        """Returns whether the message is claimed. Reads only, and works on a standby."""
        return await self.run(Call.of("idem_is_claimed", message_id, destination).scalar())

    async def record(self, message_id: MessageId, destination: str, effects: Effects) -> list[UUID]:
        """Records the outgoing messages of a claim, and returns their message ids."""
        call = Call.of("idem_record_effects", message_id, destination)
        return await self.run(call.add("jsonb", text_of(effects)).scalar())

    async def try_record(self, message_id: MessageId, destination: str, effects: Effects) -> bool:
        """Claims a message and records its effects. Returns False for a duplicate."""
        call = Call.of("idem_try_record", message_id, destination)
        return await self.run(call.add("jsonb", text_of(effects)).scalar())

    async def effects(self, message_id: MessageId, destination: str) -> list[RecordedEffect]:
        """Returns the effects that the first execution of the message recorded."""
        call = Call.of("idem_effects", message_id, destination)
        return await self.run(call.returning(results.EFFECTS, results.effects_of))

    async def send(self, effect: Effect) -> UUID:
        """Sends a message that does not result from another message. Returns its message id."""
        if ensure_effect(effect).deliver_after is not None:
            raise ValueError("send does not support deliver_after: record the effect with a claim")
        call = Call("idem_send_bytes" if is_bytes(effect.payload) else "idem_send")
        call.text(effect.topic).payload(effect.payload)
        call.content(effect.headers, effect.key, effect.type, effect.content_type)
        return await self.run(call.option("message_id", "uuid", effect.message_id).scalar())

    # Leases: each of these methods needs a commit of its own before the work.

    async def acquire(
        self, message_id: MessageId, destination: str, lease: timedelta = DEFAULT_LEASE
    ) -> Acquired:
        """Acquires the lease of a message. Commit before the work begins."""
        call = Call.of("idem_acquire", message_id, destination).add("interval", lease)
        acquired = results.lease_of(message_id, destination, lease)
        return await self.run(call.returning(results.LEASE, acquired))

    async def extend(self, held: Held) -> None:
        """Extends a lease by its duration from now. SQLSTATE 55000 if it is lost."""
        call = Call.of_lease("idem_extend", held).add("interval", held.duration)
        return await self.run(call.nothing())

    async def complete(self, held: Held, effects: Effects = ()) -> list[UUID]:
        """Turns the lease into the claim, and records the effects, in this transaction.

        SQLSTATE 55000 if the lease is lost.
        """
        call = Call.of_lease("idem_complete", held).add("jsonb", text_of(effects))
        return await self.run(call.scalar())

    async def release(
        self, held: Held, error: str | None = None, *, final: bool = False
    ) -> timedelta | None:
        """Releases a lease. Returns the time until the next attempt, None if there is none.

        Without an error the attempt does not count. The server stores 2,000 bytes of an error, here
        and in the other methods.
        """
        call = Call.of_lease("idem_release", held).option(
            "error", "text", error and storable(error)
        )
        call.option("final", "boolean", final)
        pause = results.microseconds("idem_release")
        return await self.run(call.returning(pause, results.duration_of))

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
        call = Call.of_lease("idem_bury", held).add("bytea", bytes(payload)).error(error)
        return await self.run(call.content(headers, key, type, content_type).nothing())

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

        `deliver_after` has a time zone. Acknowledge the message after the commit.
        """
        function = "idem_receive_bytes" if is_bytes(payload) else "idem_receive"
        call = Call.of(function, message_id, destination).payload(payload)
        call.content(headers, key, type, content_type)
        return await self.run(call.time_option("deliver_after", deliver_after).scalar())

    async def next(
        self,
        destination: str,
        *,
        max_messages: int = 1,
        lease: timedelta = DEFAULT_LEASE,
        max_bytes: int | None = None,
    ) -> list[ReceivedMessage]:
        """Leases due messages, and returns them in order. Commit before the work begins."""
        call = Call("idem_next").text(destination).add("integer", max_messages)
        call.add("interval", lease).option("max_bytes", "bigint", max_bytes)
        return await self.run(
            call.returning(results.MESSAGES, results.messages_of(destination, lease))
        )

    async def next_wait(self, destination: str, timeout_ms: int = 1000) -> bool:
        """Waits until `next` can return a message. False after the timeout."""
        call = Call("idem_next_wait").text(destination).add("integer", timeout_ms)
        return await self.run(call.scalar())

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
        call = Call("idem_reject")
        if message_id is None:
            call.add("text", None)
        else:
            call.id(message_id)
        call.text(destination).add("bytea", bytes(payload)).error(error)
        call.content(headers, key, type, content_type)
        return await self.run(call.option("source", "text", source).scalar())

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
        call = Call.of("idem_begin_call", message_id, destination).text(step)
        call.json_option("request", request).option("token", "bigint", token)
        return await self.run(call.returning(results.BEGUN, results.begun_of))

    async def finish_call(
        self, message_id: MessageId, destination: str, step: str, response: Any = None
    ) -> None:
        """Records the response of an external call, as JSON."""
        call = Call.of("idem_finish_call", message_id, destination).text(step)
        return await self.run(call.response(response).nothing())

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
        call = Call.of("idem_fail_call", message_id, destination).text(step).error(error)
        return await self.run(call.add("boolean", retryable).nothing())

    async def calls(self, message_id: MessageId, destination: str) -> list[ExternalCall]:
        """Returns the external calls of a message."""
        call = Call.of("idem_calls", message_id, destination)
        return await self.run(call.returning(results.CALLS, results.calls_of))
