"""The consumer of `confluent_kafka_consumer.py`, with the mock cluster of librdkafka."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from harness import (
    ISOLATED,
    PAUSE,
    WITHOUT_CLAIMS,
    Database,
    Payment,
    assert_broken,
    consume_and_kill,
    malformed_messages,
    starter,
    until,
)

COMMAND = ["confluent_kafka_consumer.py"]
TOPIC, GROUP = "payments", "billing"


class Kafka:
    """A cluster in this process. The producer owns it."""

    def __init__(self) -> None:
        self._producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})
        brokers = self._producer.list_topics(timeout=60).brokers.values()
        self.brokers = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
        settings = {"bootstrap.servers": self.brokers, "group.id": GROUP, "log_level": 0}
        self._observer = Consumer(settings)

    def publish(self, payments: Iterable[Payment]) -> None:
        self.produce((payment.message_id, payment.body) for payment in payments)

    def produce(self, messages: Iterable[tuple[str | bytes | None, bytes]]) -> None:
        for message_id, body in messages:
            headers = {} if message_id is None else {"message-id": message_id}
            self._producer.produce(TOPIC, body, key=str(uuid.uuid4()), headers=headers)
        assert self._producer.flush(60) == 0

    def is_drained(self) -> bool:
        """Returns whether the group has committed the end of each partition."""
        partitions = self._producer.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions
        topic = [TopicPartition(TOPIC, partition) for partition in partitions]
        return all(self._lag(committed) == 0 for committed in self._observer.committed(topic))

    def _lag(self, committed: TopicPartition) -> int:
        low, high = self._observer.get_watermark_offsets(committed, timeout=60)
        return high - max(low, committed.offset)

    def close(self) -> None:
        self._observer.close()


@pytest.fixture
def kafka() -> Iterator[Kafka]:
    cluster = Kafka()
    yield cluster
    cluster.close()


def environment(kafka: Kafka) -> dict[str, str]:
    return {"KAFKA_BROKERS": kafka.brokers, "SESSION_TIMEOUT_MS": "4000"}


def test_killed_consumer_pays_once(database: Database, kafka: Kafka) -> None:
    start = starter(database, COMMAND, environment(kafka))
    consume_and_kill(database, kafka.publish, start, kafka.is_drained)
    database.assert_paid_once()


def test_consumer_without_claims_pays_again(database: Database, kafka: Kafka) -> None:
    """The broken variant that the test above finds."""
    start = starter(database, COMMAND, environment(kafka) | WITHOUT_CLAIMS)
    consume_and_kill(database, kafka.publish, start, kafka.is_drained)
    assert_broken(database)


def test_message_without_id_is_claimed_by_position(database: Database, kafka: Kafka) -> None:
    kafka.produce((None, payment.body) for payment in database.payments)
    start = starter(database, COMMAND, environment(kafka))
    with start() as consumer, database.paused():
        database.until_waiting(consumer, PAUSE)
    with start():
        until("every offset is committed", kafka.is_drained)
    assert database.charges() == {1: len(database.payments)}


def test_malformed_messages_become_dead_letters(database: Database, kafka: Kafka) -> None:
    """No message stops the consumer, and the valid payments are charged."""
    malformed, payments = malformed_messages(), database.payments
    ids = [b"\xff", b"NUL\0", b"x" * 1025]
    bodies = [payment.unique_body for payment in payments]
    invalid_ids = list(zip(ids, bodies, strict=False))
    kafka.produce(invalid_ids + malformed)
    kafka.publish(payments)
    with starter(database, COMMAND, environment(kafka) | ISOLATED)():
        until("every offset is committed", kafka.is_drained)
    for _, body in invalid_ids:
        assert database.dead_letters(body) == 1
    for message_id, _ in malformed:
        assert database.is_dead_letter(message_id)
    database.assert_paid_once()


def test_failed_payment_is_tried_again(database: Database, kafka: Kafka) -> None:
    database.fail_twice()
    kafka.publish(database.payments[:1])
    with starter(database, COMMAND, environment(kafka))():
        until("every offset is committed", kafka.is_drained)
    assert database.attempts() == 3
    assert database.charges() == {0: len(database.payments) - 1, 1: 1}


def test_poisonous_message_becomes_a_dead_letter(database: Database, kafka: Kafka) -> None:
    """Goal: the next messages are processed, in the same process."""
    poison = database.payments[0]
    database.forbid(poison)
    kafka.publish(database.payments)
    with starter(database, COMMAND, environment(kafka))() as consumer:
        consumer.until("every offset is committed", kafka.is_drained)
    assert database.is_dead_letter(poison.message_id)
    database.assert_others_paid_once(poison)


def test_failure_of_the_environment_ends_the_process(database: Database, kafka: Kafka) -> None:
    """Goal: such a failure makes no dead letters of messages that could be processed."""
    database.remove_accounts()
    kafka.publish(database.payments)
    start = starter(database, COMMAND, environment(kafka))
    with start() as consumer:
        consumer.wait_for_error()
    database.restore_accounts()
    with start():
        until("every offset is committed", kafka.is_drained)
    database.assert_paid_once()
