"""A consumer of Kafka with confluent-kafka that charges each payment once.

`KAFKA_BROKERS=… python confluent_kafka_consumer.py` consumes the topic `payments`. PGHOST,
PGDATABASE and so on name the database. The process ends after an error of the environment, for
example a lost connection. Start it again then: it continues at the last committed offset. A message
that fails for another reason becomes a dead letter after three attempts.
"""

from __future__ import annotations

import contextlib
import json
import os
import time

import psycopg
from confluent_kafka import Consumer, KafkaException, Message

from idem_pg import Effect, Idem, IdemError

TOPIC, DESTINATION = "payments", "billing.charge"
ATTEMPTS, PAUSE_S = 3, 1.0
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


class InvalidPaymentError(Exception):
    """The payment cannot be charged, and another attempt would fail too."""


def position_of(message: Message) -> str:
    """Returns the position and the time. A topic that is created again repeats its positions."""
    _, time = message.timestamp()
    return f"{message.topic()}/{message.partition()}/{message.offset()}/{time}"


def id_of(message: Message) -> str | None:
    """Returns the id in the headers, if there is one."""
    for name, value in message.headers() or []:
        if name == "message-id" and value:
            # The limit is that of idem, and PostgreSQL stores no NUL.
            if len(value) > 1024 or b"\0" in value:
                raise InvalidPaymentError("the message id is too long or contains a NUL")
            try:
                return value.decode()
            except UnicodeDecodeError as error:
                raise InvalidPaymentError("the message id is not UTF-8") from error
    return None


def payment_of(body: bytes) -> tuple[int, int]:
    """Returns the account and the amount."""
    try:
        payment = json.loads(body)
        account, cents = payment["account"], payment["cents"]
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise InvalidPaymentError(f"not a payment: {error}") from error
    # A bool is an int too, and a larger int does not fit into the column.
    if not (type(account) is type(cents) is int and 0 <= account < 2**31 and 0 < cents < 2**31):
        raise InvalidPaymentError("account or cents is not an integer, or is out of range")
    return account, cents


def charge(connection: psycopg.Connection, message_id: str, account: int, cents: int) -> None:
    update = connection.execute(
        "UPDATE account SET balance = balance - %s WHERE id = %s", [cents, account]
    )
    if update.rowcount != 1:
        raise InvalidPaymentError(f"account {account} does not exist")
    receipt = Effect("receipts", {"account": account, "cents": cents})
    Idem(connection).record(message_id, DESTINATION, receipt)


def is_of_message(error: Exception) -> bool:
    """Returns whether the message can be the cause of a failed attempt.

    PostgreSQL has rejected the data (classes 22 and 23, RAISE), or the code fails. All other errors
    are conflicts, or errors of the environment: a lost connection, a table that is missing.
    """
    if isinstance(error, (IdemError, psycopg.Error)):
        return (error.sqlstate or "")[:2] in ("22", "23", "P0")
    return not isinstance(error, (InvalidPaymentError, OSError))


def charge_once(connection: psycopg.Connection, message_id: str, account: int, cents: int) -> None:
    """Charges the payment in one transaction, or does nothing for a duplicate."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with connection.transaction():  # An error rolls back the claim too.
                if Idem(connection).try_claim(message_id, DESTINATION):
                    charge(connection, message_id, account, cents)
            return
        except Exception as error:
            if not is_of_message(error):
                raise
            if attempt == ATTEMPTS:
                raise InvalidPaymentError(f"{ATTEMPTS} attempts have failed: {error}") from error
        time.sleep(PAUSE_S)


def handle(connection: psycopg.Connection, message: Message) -> None:
    """Charges the payment once, or stores the message as a dead letter."""
    # A message that its producer sends twice has two positions. Only an id finds this duplicate.
    message_id = position_of(message)
    body = message.value() or b""
    try:
        message_id = id_of(message) or message_id
        account, cents = payment_of(body)
        charge_once(connection, message_id, account, cents)
    except InvalidPaymentError as error:
        # The default of the role can be another level, at which `reject` fails.
        connection.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        Idem(connection).reject(message_id, DESTINATION, body, str(error), source=TOPIC)


def consume(consumer: Consumer, connection: psycopg.Connection) -> None:
    consumer.subscribe([TOPIC])
    while True:
        messages = consumer.consume(num_messages=20, timeout=1.0)
        for message in messages:
            if error := message.error():
                raise KafkaException(error)
            handle(connection, message)
            connection.commit()  # The dead letter.
        if messages:
            consumer.commit(asynchronous=False)  # The offsets, after the transactions.


if __name__ == "__main__":
    with contextlib.closing(Consumer(SETTINGS)) as consumer, psycopg.connect() as connection:
        consume(consumer, connection)
