"""A consumer of RabbitMQ with aio-pika that charges each payment once.

`AMQP_URL=amqp://… python aio_pika_consumer.py` consumes the queue `payments`. PGHOST, PGDATABASE
and so on name the database. The process ends after an error of the environment, for example a lost
connection. Start it again then: RabbitMQ delivers the messages that are not acknowledged again. A
message that fails for another reason becomes a dead letter after three attempts.

aio-pika cannot read a message whose id is not UTF-8, and closes the connection. Then the process
ends at each start, until another program removes this message from the queue.
"""

from __future__ import annotations

import asyncio
import json
import os

import aio_pika
import psycopg
from aio_pika.abc import AbstractIncomingMessage, AbstractQueue
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from idem_pg import AsyncIdem, Effect, IdemError

QUEUE = "payments"
DESTINATION = "billing.charge"
WORKERS = 8
ATTEMPTS, PAUSE_S = 3, 1.0


class InvalidPaymentError(Exception):
    """The payment cannot be charged, and another attempt would fail too."""


def id_of(message: AbstractIncomingMessage) -> str:
    """Returns the message id. AMQP limits it to 255 bytes, and PostgreSQL stores no NUL."""
    if not message.message_id or "\0" in message.message_id:
        raise InvalidPaymentError("the message has no valid id")
    return message.message_id


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


async def charge(connection: AsyncConnection, message_id: str, account: int, cents: int) -> None:
    update = await connection.execute(
        "UPDATE account SET balance = balance - %s WHERE id = %s", [cents, account]
    )
    if update.rowcount != 1:
        raise InvalidPaymentError(f"account {account} does not exist")
    receipt = Effect("receipts", {"account": account, "cents": cents})
    await AsyncIdem(connection).record(message_id, DESTINATION, receipt)


def is_of_message(error: Exception) -> bool:
    """Returns whether the message can be the cause of a failed attempt.

    PostgreSQL has rejected the data (classes 22 and 23, RAISE), or the code fails. All other errors
    are conflicts, or errors of the environment: a lost connection, a table that is missing.
    """
    if isinstance(error, (IdemError, psycopg.Error)):
        return (error.sqlstate or "")[:2] in ("22", "23", "P0")
    return not isinstance(error, (InvalidPaymentError, OSError))


async def charge_once(
    connection: AsyncConnection, message_id: str, account: int, cents: int
) -> None:
    """Charges the payment in one transaction, or does nothing for a duplicate."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            async with connection.transaction():  # An error rolls back the claim too.
                if await AsyncIdem(connection).try_claim(message_id, DESTINATION):
                    await charge(connection, message_id, account, cents)
            return
        except Exception as error:
            if not is_of_message(error):
                raise
            if attempt == ATTEMPTS:
                raise InvalidPaymentError(f"{ATTEMPTS} attempts have failed: {error}") from error
        await asyncio.sleep(PAUSE_S)


async def handle(connection: AsyncConnection, message: AbstractIncomingMessage) -> None:
    """Charges the payment once, or stores the message as a dead letter."""
    message_id = None
    try:
        message_id = id_of(message)
        account, cents = payment_of(message.body)
        await charge_once(connection, message_id, account, cents)
    except InvalidPaymentError as error:
        # The default of the role can be another level, at which `reject` fails.
        await connection.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        idem = AsyncIdem(connection)
        await idem.reject(message_id, DESTINATION, message.body, str(error), source=QUEUE)


async def work(queue: AbstractQueue, pool: AsyncConnectionPool) -> None:
    async with queue.iterator() as messages:
        async for message in messages:
            async with pool.connection() as connection:  # Commits at its end.
                await handle(connection, message)
            await message.ack()  # After the commit.
    raise ConnectionError("the connection to RabbitMQ is lost")


async def main() -> None:
    async with (
        AsyncConnectionPool(min_size=1, max_size=WORKERS) as pool,
        await aio_pika.connect(os.environ["AMQP_URL"]) as broker,
    ):
        channel = await broker.channel()
        # The limit of each worker. More than one message hides the latency of the broker.
        await channel.set_qos(prefetch_count=10)
        queue = await channel.declare_queue(QUEUE, durable=True)
        await asyncio.gather(*(work(queue, pool) for _ in range(WORKERS)))


if __name__ == "__main__":
    asyncio.run(main())
