"""What the tests of the consumers share: payments, processes that are killed, and the checker.

Each payment has an account of its own, so the balance tells how often the payment was charged.
PGHOST, PGPORT, PGUSER and PGDATABASE name a database with the extension.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

RECIPES = Path(__file__).parent
DEADLINE = 60.0
"""Seconds until a state that a test waits for."""

PAYMENTS, CENTS = 50, 100
HELD = range(20, 30)
"""The accounts that are locked, in the middle. There are more of them than workers."""

INVALID = [
    (1.9, CENTS),
    (True, CENTS),
    ("1", CENTS),
    (None, CENTS),
    (10**20, CENTS),
    (-1, CENTS),
    (float("inf"), CENTS),
    (1, 0.5),
    (1, 0),
    (1, -5),
    (1, True),
    (1, 2**31),
]
"""Accounts and amounts that are no payments."""

UNKNOWN_ACCOUNT = 2**31 - 1

MALFORMED = [
    b"",
    b"\xff",
    b"no JSON",
    b"[]",
    b"null",
    b'{"account": 1}',
    b'{"account": 1, "cents": 1e999}',
    b"[" * 100_000,
    b'{"account": 1, "cents": ' + b"1" * 5000 + b"}",
]
"""Bodies that are no payments."""

WITHOUT_CLAIMS = {"PGOPTIONS": "-c search_path=without_claims,public"}
"""The environment of a broken variant: each claim succeeds, and effects are not recorded."""

ISOLATED = {"PGOPTIONS": r"-c default_transaction_isolation=repeatable\ read"}
"""The environment of a consumer whose role has another isolation level by default."""

FAILURES = """
    DROP SEQUENCE IF EXISTS attempt;
    CREATE SEQUENCE attempt;
    CREATE FUNCTION pg_temp.fail() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF nextval('attempt') <= 2 THEN RAISE 'attempt % fails', lastval(); END IF;
            RETURN NEW;
        END $$;
    CREATE TRIGGER fail BEFORE UPDATE ON account FOR EACH ROW EXECUTE FUNCTION pg_temp.fail();
"""
"""Makes the first two charges fail. A rollback does not reset a sequence."""

SCHEMA = """
    DROP TABLE IF EXISTS account, removed;
    DROP SCHEMA IF EXISTS without_claims CASCADE;
    CREATE TABLE account (id int PRIMARY KEY, message_id text, balance bigint NOT NULL DEFAULT 0);
    CREATE SCHEMA without_claims;
    CREATE FUNCTION without_claims.idem_try_claim(text, text) RETURNS boolean
        LANGUAGE sql AS 'SELECT true';
    CREATE FUNCTION without_claims.idem_is_claimed(text, text) RETURNS boolean
        LANGUAGE sql AS 'SELECT true';
    CREATE FUNCTION without_claims.idem_record_effects(text, text, jsonb) RETURNS uuid[]
        LANGUAGE sql AS 'SELECT NULL::uuid[]';
"""


def until(what: str, is_reached: Callable[[], bool]) -> None:
    """Waits for a state. Fails after the deadline."""
    deadline = time.monotonic() + DEADLINE
    while not is_reached():
        assert time.monotonic() < deadline, f"not reached: {what}"
        time.sleep(0.02)


@dataclass(frozen=True)
class Payment:
    message_id: str
    account: Any
    cents: Any = CENTS

    @property
    def body(self) -> bytes:
        return json.dumps({"account": self.account, "cents": self.cents}).encode()

    @property
    def unique_body(self) -> bytes:
        """The body of a payment, which is different in each test."""
        body = {"account": self.account, "cents": self.cents, "note": self.message_id}
        return json.dumps(body).encode()


def invalid_payments() -> list[Payment]:
    """Returns payments that become dead letters, each with an id of its own."""
    invalid = [*INVALID, (UNKNOWN_ACCOUNT, CENTS)]
    return [Payment(str(uuid.uuid4()), account, cents) for account, cents in invalid]


def malformed_messages() -> list[tuple[str, bytes]]:
    """Returns ids and bodies that become dead letters, also those of the invalid payments."""
    invalid = [(payment.message_id, payment.body) for payment in invalid_payments()]
    return [*((str(uuid.uuid4()), body) for body in MALFORMED), *invalid]


class Database:
    """The accounts, their payments, and what a test sees of the consumer's sessions."""

    def __init__(self, connection: psycopg.Connection, destination: str) -> None:
        self._connection = connection
        self._destination = destination
        connection.execute(SCHEMA)
        self.payments = [Payment(str(uuid.uuid4()), account) for account in range(PAYMENTS)]
        with connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO account VALUES (%s, %s)",
                [[payment.account, payment.message_id] for payment in self.payments],
            )

    def one(self, sql: str, *parameters: Any) -> Any:
        row = self._connection.execute(sql, parameters).fetchone()
        return None if row is None else row[0]

    def charges(self) -> Counter[int]:
        """Returns how many payments were charged how often."""
        rows = self._connection.execute("SELECT -balance / %s FROM account", [CENTS])
        return Counter(row[0] for row in rows)

    def assert_paid_once(self) -> None:
        assert self.charges() == {1: PAYMENTS}
        sql = """SELECT count(*) FROM account
                 WHERE (SELECT count(*) FROM idem_effects(message_id, %s)) = 1"""
        assert self.one(sql, self._destination) == PAYMENTS, "payments with one receipt"

    def fail_twice(self) -> None:
        self._connection.execute(FAILURES)

    def forbid(self, payment: Payment) -> None:
        """Lets each charge of this payment fail: the account has no funds."""
        self._connection.execute(
            f"ALTER TABLE account ADD CHECK (id <> {int(payment.account)} OR balance >= 0)".encode()
        )

    def assert_others_paid_once(self, poison: Payment) -> None:
        assert self.charges() == {0: 1, 1: PAYMENTS - 1}
        assert not self.is_claimed(poison.message_id)

    def remove_accounts(self) -> None:
        """Lets each charge fail until `restore_accounts`, as during a faulty deployment."""
        self._connection.execute("ALTER TABLE account RENAME TO removed")

    def restore_accounts(self) -> None:
        self._connection.execute("ALTER TABLE removed RENAME TO account")

    def attempts(self) -> int:
        return int(self.one("SELECT last_value FROM attempt"))

    def is_dead_letter(self, message_id: str) -> bool:
        sql = "SELECT count(*) FROM idem.dead_letters WHERE destination = %s AND id = %s"
        return bool(self.one(sql, self._destination, message_id))

    def is_claimed(self, message_id: str) -> bool:
        return bool(self.one("SELECT idem_is_claimed(%s, %s)", message_id, self._destination))

    def dead_letters(self, payload: bytes) -> int:
        sql = "SELECT count(*) FROM idem.dead_letters WHERE destination = %s AND payload = %s"
        return int(self.one(sql, self._destination, payload))

    def until_waiting(self, consumer: Consumer, statement: str) -> None:
        """Waits until a session of the consumer waits for a lock in a statement."""
        sql = """SELECT count(*) > 0 FROM pg_stat_activity
                 WHERE application_name = %s AND wait_event_type = 'Lock'
                   AND starts_with(query, %s)"""

        def is_waiting() -> bool:
            assert consumer.is_running()
            return bool(self.one(sql, consumer.name, statement))

        until(f"the consumer waits in {statement}", is_waiting)

    @contextlib.contextmanager
    def locked_accounts(self) -> Iterator[psycopg.Connection]:
        """Locks accounts until the end of the block, or until the rollback of the connection."""
        with psycopg.connect() as holder:
            sql = "SELECT FROM account WHERE id >= %s AND id < %s FOR UPDATE"
            holder.execute(sql, [HELD.start, HELD.stop])
            yield holder

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stops consumers after a commit. See `pause/sitecustomize.py`."""
        with psycopg.connect() as holder:
            holder.execute("SELECT pg_advisory_xact_lock(1)")
            yield

    def end_sessions(self, name: str) -> None:
        """Ends the sessions of a process. A server notices the end of its client late."""
        sql = """SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                 WHERE application_name = %s"""
        until("the sessions have ended", lambda: self.one(sql, name) == 0)


class Consumer:
    """A process, with its children. `kill` is SIGKILL, and the consumer gets no other signal."""

    def __init__(self, database: Database, command: Sequence[str], environment: Mapping[str, str]):
        self.name = f"consumer-{uuid.uuid4()}"
        self._database = database
        path = [str(RECIPES / "pause"), str(RECIPES), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            # This process ends also if the test is killed. The processes that it forks do not
            # inherit this setting.
            ["setpriv", "--pdeathsig", "KILL", sys.executable, *command],
            cwd=RECIPES,
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join(path), "PGAPPNAME": self.name}
            | dict(environment),
            start_new_session=True,
        )

    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill_children(self) -> None:
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        for pid in children.read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        self._database.end_sessions(self.name)

    def until(self, what: str, is_reached: Callable[[], bool]) -> None:
        """Waits for a state. Fails at once if the first process has ended."""

        def is_reached_while_running() -> bool:
            assert self.is_running(), f"the process has ended before: {what}"
            return is_reached()

        until(what, is_reached_while_running)

    def wait_for_error(self) -> None:
        assert self._process.wait(DEADLINE) != 0

    def kill(self) -> None:
        # The group exists until its last process ends, also after the first one.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._database.end_sessions(self.name)


Start = Callable[[], AbstractContextManager[Consumer]]


def starter(database: Database, command: Sequence[str], environment: Mapping[str, str]) -> Start:
    """Returns a function that starts a consumer, which is killed at the end of its block."""

    @contextlib.contextmanager
    def started() -> Iterator[Consumer]:
        consumer = Consumer(database, command, environment)
        try:
            yield consumer
        finally:
            consumer.kill()

    return started


CHARGE, PAUSE = "UPDATE account", "SELECT pg_advisory_lock_shared"
"""The statements in which a consumer waits before a commit, and after a commit."""


def consume_and_kill(
    database: Database,
    publish: Callable[[Iterable[Payment]], None],
    start: Start,
    is_drained: Callable[[], bool],
) -> None:
    """Publishes each payment twice, and kills two consumers. A third one drains the queue.

    The first consumer is killed before a commit, and the second one after a commit. The payments of
    both are published again at the end only, so that no duplicate hides a lost message.
    """
    held, others = database.payments[HELD.start : HELD.stop], database.payments.copy()
    del others[HELD.start : HELD.stop]
    publish(database.payments)
    publish(others)
    with database.locked_accounts() as accounts:
        with start() as consumer:
            database.until_waiting(consumer, CHARGE)
        assert database.charges()[0] >= len(HELD), "the consumer was killed in the middle"
        with start() as consumer:
            database.until_waiting(consumer, CHARGE)
            with database.paused():
                accounts.rollback()
                database.until_waiting(consumer, PAUSE)
                consumer.kill()
    with start():
        until("every message is acknowledged", is_drained)
        assert 0 not in database.charges(), "a message is lost"
        publish(held)
        until("every duplicate is acknowledged", is_drained)


def assert_broken(database: Database) -> None:
    """Asserts that every payment was charged twice, and again after the kill."""
    charges = database.charges()
    assert min(charges) >= 2
    assert max(charges) >= 3, "no committed payment was delivered again"
    with pytest.raises(AssertionError):
        database.assert_paid_once()
