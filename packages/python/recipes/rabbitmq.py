"""RabbitMQ in the tests: AMQP_URL, and the environment of rabbitmqctl for the same server."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterable, Iterator

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

RABBITMQCTL = "/usr/lib/rabbitmq/bin/rabbitmqctl"


def declare(queue: str) -> None:
    with _channel() as channel:
        channel.queue_declare(queue, durable=True)


def purge(queue: str) -> None:
    """Removes what a failed test left in the queue, if the queue exists."""
    with contextlib.suppress(ChannelClosedByBroker), _channel() as channel:
        channel.queue_purge(queue)


def publish(
    queue: str,
    messages: Iterable[tuple[str | None, bytes]],
    headers: dict[str, str] | None = None,
) -> None:
    """Publishes persistent messages of JSON, each with a message id or without one."""
    with _channel() as channel:
        channel.confirm_delivery()
        for message_id, body in messages:
            properties = pika.BasicProperties(
                message_id=message_id,
                delivery_mode=2,
                content_type="application/json",
                content_encoding="utf-8",
                headers=headers,
            )
            channel.basic_publish("", queue, body, properties, mandatory=True)


@contextlib.contextmanager
def _channel() -> Iterator[BlockingChannel]:
    with pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"])) as broker:
        yield broker.channel()


def count(queue: str) -> int:
    """Returns the number of messages in a queue, with those that are not acknowledged."""
    return _counts()[queue]


def exists(queue: str) -> bool:
    return queue in _counts()


def _counts() -> dict[str, int]:
    command = [RABBITMQCTL, "--quiet", "list_queues", "--no-table-headers", "name", "messages"]
    environment = os.environ | {"HOME": os.environ["RABBITMQ_HOME"], "LC_ALL": "C.UTF-8"}
    output = subprocess.check_output(command, env=environment, text=True)
    lines = (line.split("\t") for line in output.splitlines())
    return {queue: int(messages) for queue, messages in lines}
