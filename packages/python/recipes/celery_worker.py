"""A worker of Celery over RabbitMQ that charges each payment once.

`AMQP_URL=amqp://… celery -A celery_worker worker` works on the queue `celery.payments`. PGHOST,
PGDATABASE and so on name the database. The id of the task is the id of the message, so a producer
passes the id of the payment: `charge.apply_async([7, 500], task_id="payment-4711")`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import psycopg
from celery import Celery, Task
from celery.signals import worker_init
from celery.utils.log import get_logger
from celery.worker.consumer import Consumer
from kombu import Message, Queue

from idem_pg import Effect, Idem, idempotent

QUEUE, DEAD_LETTERS = "celery.payments", "celery.payments.dead"
DESTINATION = "billing.charge"
logger = get_logger(__name__)


class RejectingConsumer(Consumer):
    """Rejects a message that is no task. The consumer of Celery acknowledges it, or ends."""

    def create_task_handler(self, *args: Any, **options: Any) -> Callable[[Message], None]:
        handle = super().create_task_handler(*args, **options)

        def handle_or_reject(message: Message) -> None:
            try:
                handle(message)
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                self.on_decode_error(message, error)

        return handle_or_reject

    def on_decode_error(self, message: Message, exc: Exception) -> None:
        logger.error("cannot decode a message: %r", exc)
        message.reject_log_error(logger, self.connection_errors)


app = Celery("billing", broker=os.environ["AMQP_URL"])
app.conf.update(
    worker_consumer=RejectingConsumer,
    # Acknowledge a message after its transaction, and never after a failure.
    task_acks_late=True,
    task_acks_on_failure_or_timeout=False,
    # Deliver the message again if its process is killed. The claim makes this safe.
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    # Otherwise a retry can be lost: Celery publishes it, and acknowledges the first message.
    broker_transport_options={"confirm_publish": True},
    task_default_queue=QUEUE,
    # Rejected messages go to another queue. Without it, RabbitMQ would drop them.
    task_queues=[
        Queue(
            QUEUE,
            routing_key=QUEUE,
            queue_arguments={
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": DEAD_LETTERS,
            },
        )
    ],
)


@worker_init.connect
def declare_dead_letters(**_: Any) -> None:
    with app.connection_for_write() as broker:
        Queue(DEAD_LETTERS, routing_key=DEAD_LETTERS)(broker.default_channel).declare()


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


@idempotent(destination=DESTINATION, id=lambda task, *_: task.request.id)
def charge_once(connection: psycopg.Connection, task: Task, account: int, cents: int) -> None:
    """Charges the payment in the transaction of the connection. Does nothing for a duplicate."""
    update = connection.execute(
        "UPDATE account SET balance = balance - %s WHERE id = %s", [cents, account]
    )
    if update.rowcount != 1:
        raise InvalidPaymentError(f"account {account} does not exist")
    # Not `apply_async`, which would send a message although the transaction fails.
    receipt = Effect("receipts", {"account": account, "cents": cents})
    Idem(connection).record(task.request.id, DESTINATION, receipt)


# A retry has the same id. After the last retry, the message becomes a dead letter. An invalid
# payment becomes one at once.
@app.task(
    bind=True,
    autoretry_for=(Exception,),
    dont_autoretry_for=(InvalidPaymentError,),
    retry_backoff=True,
    max_retries=5,
)
def charge(task: Task, account: int, cents: int) -> None:
    check(task.request.id, account, cents)
    with psycopg.connect() as connection:  # One transaction.
        charge_once(connection, task, account, cents)
