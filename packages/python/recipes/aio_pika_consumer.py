"""A consumer of RabbitMQ with aio-pika that charges each payment once.

`AMQP_URL=amqp://… python aio_pika_consumer.py` consumes the queue `payments`. PGHOST, PGDATABASE
and so on name the database. The process ends after an error, for example a lost connection.
Start it again then: RabbitMQ delivers the messages that are not acknowledged again.
"""

from __future__ import annotations

import asyncio
import json
import os

import aio_pika
from aio_pika.abc import AbstractIncomingMessage, AbstractQueue
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from idem_pg import AsyncIdem, Effect

QUEUE = "payments"
DESTINATION = "billing.charge"
WORKERS = 8


def payment_of(body: bytes) -> tuple[int, int]:
    """Returns the account and the amount. Raises ValueError if the message is malformed."""
    try:
        payment = json.loads(body)
        return int(payment["account"]), int(payment["cents"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a payment: {error!r}") from error


async def handle(connection: AsyncConnection, message: AbstractIncomingMessage) -> None:
    """Charges the payment in the transaction of the connection."""
    idem = AsyncIdem(connection)
    try:
        account, cents = payment_of(message.body)
        if not message.message_id:
            raise ValueError("the message has no id")
    except ValueError as error:
        # Every delivery would fail again, so the message becomes a dead letter in the database.
        await idem.reject(
            message.message_id or None, DESTINATION, message.body, str(error), source=QUEUE
        )
        return
    if not await idem.try_claim(message.message_id, DESTINATION):
        return  # A duplicate.
    await connection.execute(
        "UPDATE account SET balance = balance - %s WHERE id = %s", [cents, account]
    )
    receipt = Effect("receipts", {"account": account, "cents": cents})
    await idem.record(message.message_id, DESTINATION, receipt)


async def work(queue: AbstractQueue, pool: AsyncConnectionPool) -> None:
    async with queue.iterator() as messages:
        async for message in messages:
            async with pool.connection() as connection:  # One transaction.
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
