"""The worker of `dramatiq_worker.py`, with RabbitMQ."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import rabbitmq
from dramatiq.common import dq_name, xq_name
from dramatiq_worker import QUEUE, charge
from harness import (
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

COMMAND = ["-m", "dramatiq", "dramatiq_worker", "--processes", "2", "--threads", "2"]


@pytest.fixture(autouse=True)
def queues() -> None:
    rabbitmq.purge(QUEUE)
    rabbitmq.purge(dq_name(QUEUE))


def publish(payments: Iterable[Payment]) -> None:
    for payment in payments:
        charge.send(payment.message_id, payment.account, payment.cents)


def is_drained() -> bool:
    return rabbitmq.count(QUEUE) == rabbitmq.count(dq_name(QUEUE)) == 0


def test_killed_worker_pays_once(database: Database) -> None:
    consume_and_kill(database, publish, starter(database, COMMAND, {}), is_drained)
    database.assert_paid_once()


def test_worker_without_claims_pays_again(database: Database) -> None:
    """The broken variant that the test above finds."""
    consume_and_kill(database, publish, starter(database, COMMAND, WITHOUT_CLAIMS), is_drained)
    assert_broken(database)


def test_failed_message_is_retried(database: Database) -> None:
    database.fail_twice()
    publish(database.payments[:1])
    with starter(database, COMMAND, {})():
        # Before that, a retry can move from one queue to the other between two counts.
        until("the third attempt", lambda: database.attempts() == 3)
        until("every message is acknowledged", is_drained)
    assert database.charges() == {0: len(database.payments) - 1, 1: 1}


def test_message_without_further_retries_becomes_a_dead_letter(database: Database) -> None:
    database.fail_twice()
    rabbitmq.declare(xq_name(QUEUE))
    before = rabbitmq.count(xq_name(QUEUE))
    payment = database.payments[0]
    charge.send_with_options(args=(payment.message_id, payment.account, payment.cents), retries=5)
    with starter(database, COMMAND, {})():
        until("a dead letter", lambda: rabbitmq.count(xq_name(QUEUE)) == before + 1)
    assert database.charges() == {0: len(database.payments)}


def test_poisonous_message_becomes_a_dead_letter(database: Database) -> None:
    """Goal: the next messages are processed. The message has short delays between its retries."""
    rabbitmq.declare(xq_name(QUEUE))
    before = rabbitmq.count(xq_name(QUEUE))
    poison, *others = database.payments
    database.forbid(poison)
    arguments = (poison.message_id, poison.account, poison.cents)
    charge.send_with_options(args=arguments, min_backoff=10, max_backoff=100)
    publish(others)
    with starter(database, COMMAND, {})() as worker:
        worker.until("a dead letter", lambda: rabbitmq.count(xq_name(QUEUE)) == before + 1)
        worker.until("every message is acknowledged", is_drained)
    database.assert_others_paid_once(poison)


def test_invalid_payments_become_dead_letters_at_once(database: Database) -> None:
    # The arguments of the queue are those without a time to live, or this fails.
    rabbitmq.declare(xq_name(QUEUE))
    before = rabbitmq.count(xq_name(QUEUE))
    invalid = invalid_payments()
    arguments = [(payment.message_id, payment.account, payment.cents) for payment in invalid]
    arguments += [(other, 1, 100) for other in (None, 7, "", "NUL\0", "\ud800", "x" * 257)]
    for args in arguments:
        # A retry would wait until after the deadline.
        charge.send_with_options(args=args, min_backoff=600_000)
    rabbitmq.publish(QUEUE, [(None, body) for body in MALFORMED])
    publish(database.payments)
    with starter(database, COMMAND, {})():
        until("every message is acknowledged", is_drained)
    assert rabbitmq.count(xq_name(QUEUE)) == before + len(arguments) + len(MALFORMED)
    assert not any(database.is_claimed(payment.message_id) for payment in invalid)
    database.assert_paid_once()


def test_error_of_another_type_is_retried(database: Database) -> None:
    """A TypeError or ValueError of a library must not skip the retries."""
    charge.send_with_options(args=(1, 100))
    with starter(database, COMMAND, {})():
        until("a retry", lambda: rabbitmq.count(dq_name(QUEUE)) == 1)


def test_message_with_a_missing_argument_becomes_a_dead_letter(database: Database) -> None:
    rabbitmq.declare(xq_name(QUEUE))
    before = rabbitmq.count(xq_name(QUEUE))
    charge.send_with_options(args=(1, 100), retries=5)
    with starter(database, COMMAND, {})():
        until("a dead letter", lambda: rabbitmq.count(xq_name(QUEUE)) == before + 1)
