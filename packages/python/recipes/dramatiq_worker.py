"""A worker of Dramatiq over RabbitMQ that charges each payment once.

`AMQP_URL=amqp://… dramatiq dramatiq_worker` works on the queue `dramatiq.payments`. PGHOST,
PGDATABASE and so on name the database. The first argument of a message is its id, which stays the
same if a producer sends it again: `charge.send("payment-4711", 7, 500)`. Dramatiq gives each `send`
a message id of its own, so that id identifies no payment.
"""

from __future__ import annotations

import os
from typing import Any

import dramatiq
import psycopg
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.common import xq_name

from idem_pg import Effect, Idem, idempotent

QUEUE = "dramatiq.payments"
DESTINATION = "billing.charge"


class Broker(RabbitmqBroker):
    """Keeps dead letters. The broker of Dramatiq drops them after seven days."""

    def _declare_xq_queue(self, queue_name: str) -> Any:
        return self.channel.queue_declare(queue=xq_name(queue_name), durable=True)


# Without confirmations a retry can be lost: Dramatiq publishes it, and acknowledges the first
# message.
dramatiq.set_broker(Broker(url=os.environ["AMQP_URL"], confirm_delivery=True))


class InvalidPaymentError(Exception):
    """The payment cannot be charged, and another attempt would fail too."""


def check(payment_id: Any, account: Any, cents: Any) -> None:
    """Checks the arguments, which a producer of another language can send with other types."""
    # 256 characters have at most 1,024 bytes. PostgreSQL stores no NUL, which is not printable.
    if not (type(payment_id) is str and payment_id.isprintable() and 0 < len(payment_id) <= 256):
        raise InvalidPaymentError("the payment has no valid id")
    # A bool is an int too, and a larger int does not fit into the column.
    if not (type(account) is type(cents) is int and 0 <= account < 2**31 and 0 < cents < 2**31):
        raise InvalidPaymentError("account or cents is not an integer, or is out of range")


@idempotent(destination=DESTINATION, id=lambda payment_id, *_: payment_id)
def charge_once(connection: psycopg.Connection, payment_id: str, account: int, cents: int) -> None:
    """Charges the payment in the transaction of the connection. Does nothing for a duplicate."""
    update = connection.execute(
        "UPDATE account SET balance = balance - %s WHERE id = %s", [cents, account]
    )
    if update.rowcount != 1:
        raise InvalidPaymentError(f"account {account} does not exist")
    # Not `send`, which would send a message although the transaction fails.
    receipt = Effect("receipts", {"account": account, "cents": cents})
    Idem(connection).record(payment_id, DESTINATION, receipt)


# After the last retry, the message becomes a dead letter. An invalid payment becomes one at once.
# Dramatiq acknowledges a message when the actor has returned.
@dramatiq.actor(queue_name=QUEUE, max_retries=5, min_backoff=1000, throws=InvalidPaymentError)
def charge(payment_id: str, account: int, cents: int) -> None:
    check(payment_id, account, cents)
    with psycopg.connect() as connection:  # One transaction.
        charge_once(connection, payment_id, account, cents)
