"""The worker of `celery_worker.py`, with RabbitMQ."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable

import pytest
import rabbitmq
from celery_worker import DEAD_LETTERS, QUEUE, charge
from harness import (
    CHARGE,
    MALFORMED,
    WITHOUT_CLAIMS,
    Database,
    Payment,
    assert_broken,
    consume_and_kill,
    invalid_payments,
    starter,
    until,
)

COMMAND = ["-m", "celery", "-A", "celery_worker", "worker", "--concurrency", "2"]
COMMAND += ["--loglevel", "WARNING"]


def publish(payments: Iterable[Payment]) -> None:
    for payment in payments:
        charge.apply_async([payment.account, payment.cents], task_id=payment.message_id)


def is_drained() -> bool:
    return rabbitmq.count(QUEUE) == 0


@pytest.fixture(autouse=True)
def queue() -> None:
    rabbitmq.purge(QUEUE)


@pytest.fixture
def dead_letters() -> Callable[[], int]:
    """Returns a function that returns the number of new dead letters."""
    rabbitmq.declare(DEAD_LETTERS)
    before = rabbitmq.count(DEAD_LETTERS)
    return lambda: rabbitmq.count(DEAD_LETTERS) - before


def test_killed_worker_pays_once(database: Database) -> None:
    consume_and_kill(database, publish, starter(database, COMMAND, {}), is_drained)
    database.assert_paid_once()


def test_worker_without_claims_pays_again(database: Database) -> None:
    """The broken variant that the test above finds."""
    consume_and_kill(database, publish, starter(database, COMMAND, WITHOUT_CLAIMS), is_drained)
    assert_broken(database)


def test_task_of_a_killed_child_is_delivered_again(
    database: Database, dead_letters: Callable[[], int]
) -> None:
    publish(database.payments)
    with starter(database, COMMAND, {})() as worker:
        with database.locked_accounts():
            database.until_waiting(worker, CHARGE)
            worker.kill_children()
        until("every message is acknowledged", is_drained)
    assert dead_letters() == 0
    database.assert_paid_once()


def test_failed_task_is_retried(database: Database) -> None:
    database.fail_twice()
    publish(database.payments[:1])
    with starter(database, COMMAND, {})():
        until("every message is acknowledged", is_drained)
    assert database.attempts() == 3
    assert database.charges() == {0: len(database.payments) - 1, 1: 1}


def test_task_without_further_retries_becomes_a_dead_letter(
    database: Database, dead_letters: Callable[[], int]
) -> None:
    database.fail_twice()
    with starter(database, COMMAND, {})():
        charge.apply_async([1, 100], retries=charge.max_retries)
        until("a dead letter", lambda: dead_letters() == 1)
    assert database.charges() == {0: len(database.payments)}


def test_poisonous_task_becomes_a_dead_letter(
    database: Database, dead_letters: Callable[[], int]
) -> None:
    """Goal: the next tasks are processed. The delays of the retries are those of Celery."""
    poison, *others = database.payments
    database.forbid(poison)
    arguments = [poison.account, poison.cents]
    charge.apply_async(arguments, task_id=poison.message_id, retries=charge.max_retries)
    publish(others)
    with starter(database, COMMAND, {})() as worker:
        worker.until("every message is acknowledged", is_drained)
    assert dead_letters() == 1
    database.assert_others_paid_once(poison)


def test_invalid_payments_become_dead_letters(
    database: Database, dead_letters: Callable[[], int]
) -> None:
    invalid = invalid_payments()
    publish(invalid)
    charge.apply_async([1, 100], task_id="NUL\0")
    publish(database.payments)
    with starter(database, COMMAND, {})():
        until("every message is acknowledged", is_drained)
    assert dead_letters() == len(invalid) + 1
    assert not any(database.is_claimed(payment.message_id) for payment in invalid)
    database.assert_paid_once()


def test_messages_that_are_no_tasks_become_dead_letters(
    database: Database, dead_letters: Callable[[], int]
) -> None:
    no_task = json.dumps({"account": 1, "cents": 100}).encode()
    with starter(database, COMMAND, {})():
        until("the worker has declared its queue", lambda: rabbitmq.exists(QUEUE))
        rabbitmq.publish(QUEUE, [(None, no_task), ("m-1", b"no JSON")])
        task = {"task": charge.name, "id": str(uuid.uuid4()), "lang": "py"}
        bodies = [*MALFORMED, b"[1, 2, 3]", b"[[], {}, 3]"]
        rabbitmq.publish(QUEUE, [(None, body) for body in bodies], task)
        rabbitmq.publish(QUEUE, [(None, b"[[1, 100], {}, {}]")], {"task": charge.name})
        charge.app.send_task(charge.name, [1], retries=charge.max_retries)  # Without an amount.
        until("all are dead letters", lambda: dead_letters() == 4 + len(bodies))
    assert database.charges() == {0: len(database.payments)}
