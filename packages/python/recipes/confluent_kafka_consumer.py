"""A consumer of Kafka with confluent-kafka that charges each payment once.

`KAFKA_BROKERS=… python confluent_kafka_consumer.py` consumes the topic `payments`. PGHOST,
PGDATABASE and so on name the database. The process ends after an error, for example a lost
connection. Start it again then: it continues at the last committed offset.
"""

from __future__ import annotations

import contextlib
import json
import os

import psycopg
from confluent_kafka import Consumer, KafkaException, Message

from idem_pg import Effect, Idem

TOPIC, DESTINATION = "payments", "billing.charge"
SETTINGS = {
    "bootstrap.servers": os.environ["KAFKA_BROKERS"],
    "group.id": "billing",
    # Otherwise the offset of a message can be committed before its transaction.
    "enable.auto.commit": False,
    # The default, "latest", skips the messages from before the group's first commit.
    "auto.offset.reset": "earliest",
    # The time until the partitions of a killed process are assigned to another one.
    "session.timeout.ms": int(os.environ.get("SESSION_TIMEOUT_MS", "45000")),
}


def id_of(message: Message) -> str:
    """Returns the id in the headers, else the position and the time of the message.

    A message that its producer sends twice has two positions, so only an id finds this duplicate.
    The time is needed because a topic that is created again repeats its positions.
    """
    for name, value in message.headers() or []:
        if name == "message-id" and value:
            return value.decode()
    _, time = message.timestamp()
    return f"{message.topic()}/{message.partition()}/{message.offset()}/{time}"


def payment_of(body: bytes | None) -> tuple[int, int]:
    """Returns the account and the amount. Raises ValueError if the message is malformed."""
    try:
        payment = json.loads(body or b"")
        return int(payment["account"]), int(payment["cents"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a payment: {error!r}") from error


def handle(connection: psycopg.Connection, message: Message) -> None:
    """Charges the payment in the transaction of the connection."""
    idem = Idem(connection)
    message_id = id_of(message)
    body = message.value()
    try:
        account, cents = payment_of(body)
    except ValueError as error:
        # Every delivery would fail again, so the message becomes a dead letter in the database.
        idem.reject(message_id, DESTINATION, body or b"", str(error), source=TOPIC)
        return
    if not idem.try_claim(message_id, DESTINATION):
        return  # A duplicate.
    connection.execute("UPDATE account SET balance = balance - %s WHERE id = %s", [cents, account])
    idem.record(message_id, DESTINATION, Effect("receipts", {"account": account, "cents": cents}))


def consume(consumer: Consumer, connection: psycopg.Connection) -> None:
    consumer.subscribe([TOPIC])
    while True:
        messages = consumer.consume(num_messages=20, timeout=1.0)
        for message in messages:
            if error := message.error():
                raise KafkaException(error)
            handle(connection, message)
            connection.commit()
        if messages:
            consumer.commit(asynchronous=False)  # The offsets, after the transactions.


if __name__ == "__main__":
    with contextlib.closing(Consumer(SETTINGS)) as consumer, psycopg.connect() as connection:
        consume(consumer, connection)
