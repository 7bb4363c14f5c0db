"""The consumer of `aio_pika_consumer.py`, with RabbitMQ."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

import pytest
import rabbitmq
from aio_pika_consumer import QUEUE
from harness import (
    ISOLATED,
    WITHOUT_CLAIMS,
    Database,
    Payment,
    assert_broken,
    consume_and_kill,
    malformed_messages,
    starter,
    until,
)

COMMAND = ["aio_pika_consumer.py"]


@pytest.fixture(autouse=True)
def queue() -> None:
    rabbitmq.declare(QUEUE)
    rabbitmq.purge(QUEUE)


def publish(payments: Iterable[Payment]) -> None:
    rabbitmq.publish(QUEUE, [(payment.message_id, payment.body) for payment in payments])


def is_drained() -> bool:
    return rabbitmq.count(QUEUE) == 0


def test_killed_consumer_pays_once(database: Database) -> None:
    consume_and_kill(database, publish, starter(database, COMMAND, {}), is_drained)
    database.assert_paid_once()


def test_consumer_without_claims_pays_again(database: Database) -> None:
    """The broken variant that the test above finds."""
    consume_and_kill(database, publish, starter(database, COMMAND, WITHOUT_CLAIMS), is_drained)
    assert_broken(database)


def test_malformed_messages_become_dead_letters(database: Database) -> None:
    """No message stops the consumer: a valid payment follows each malformed one."""
    malformed, payments = malformed_messages(), database.payments
    without_id = [(None, payments[0].unique_body), (f"\0{uuid.uuid4()}", payments[1].unique_body)]
    for message in without_id + malformed:
        rabbitmq.publish(QUEUE, [message])
    publish(payments)
    with starter(database, COMMAND, ISOLATED)():
        until("every message is acknowledged", is_drained)
    for _, body in without_id:
        assert database.dead_letters(body) == 1
    for message_id, _ in malformed:
        assert database.is_dead_letter(message_id)
    database.assert_paid_once()


def test_failed_payment_is_tried_again(database: Database) -> None:
    database.fail_twice()
    publish(database.payments[:1])
    with starter(database, COMMAND, {})():
        until("every message is acknowledged", is_drained)
    assert database.attempts() == 3
    assert database.charges() == {0: len(database.payments) - 1, 1: 1}


def test_poisonous_message_becomes_a_dead_letter(database: Database) -> None:
    """Goal: the next messages are processed, in the same process."""
    poison = database.payments[0]
    database.forbid(poison)
    publish(database.payments)
    with starter(database, COMMAND, {})() as consumer:
        consumer.until("every message is acknowledged", is_drained)
    assert database.is_dead_letter(poison.message_id)
    database.assert_others_paid_once(poison)


def test_failure_of_the_environment_ends_the_process(database: Database) -> None:
    """Goal: such a failure makes no dead letters of messages that could be processed."""
    database.remove_accounts()
    publish(database.payments)
    start = starter(database, COMMAND, {})
    with start() as consumer:
        consumer.wait_for_error()
    database.restore_accounts()
    with start():
        until("every message is acknowledged", is_drained)
    database.assert_paid_once()
