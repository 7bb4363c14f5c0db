"""Measures what the package costs: the time per message against the same SQL written by hand.

`python bench/overhead.py [rounds] [messages]` prints the median of each driver and the median of
the ratios of the rounds. A round executes both sides, the first one alternating. PGHOST, PGPORT,
PGUSER and PGDATABASE name a database with the extension. A message is a claim, an update, a record
of one effect and a commit.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import asyncpg
import psycopg
import sqlalchemy

from idem_pg import AsyncIdem, Effect, Idem

ROUNDS, MESSAGES = [*map(int, sys.argv[1:]), 21, 500][:2] if len(sys.argv) > 1 else [21, 500]
UPDATE = "UPDATE overhead SET n = n + 1"
PAYLOAD = {"cents": 500, "currency": "EUR"}
EFFECT = Effect("receipts", PAYLOAD)
JSON = json.dumps([{"topic": "receipts", "payload": PAYLOAD}])

Side = Callable[[], None]


def psycopg_sides() -> tuple[Side, Side]:
    connection = psycopg.connect()
    claim = "SELECT idem_try_claim(CAST(%s AS text), CAST(%s AS text))"
    record = "SELECT idem_record_effects(CAST(%s AS text), CAST(%s AS text), CAST(%s AS jsonb))"

    def by_hand() -> None:
        message_id = str(uuid.uuid4())
        if connection.execute(claim, [message_id, "d"]).fetchall()[0][0]:
            connection.execute(UPDATE)
            document = json.dumps([{"topic": "receipts", "payload": PAYLOAD}])
            connection.execute(record, [message_id, "d", document]).fetchall()
        connection.commit()

    def with_package() -> None:
        message_id = str(uuid.uuid4())
        idem = Idem(connection)
        if idem.try_claim(message_id, "d"):
            connection.execute(UPDATE)
            idem.record(message_id, "d", EFFECT)
        connection.commit()

    return by_hand, with_package


def sqlalchemy_sides() -> tuple[Side, Side]:
    connection = sqlalchemy.create_engine("postgresql+psycopg://").connect()
    claim = sqlalchemy.text("SELECT idem_try_claim(CAST(:id AS text), CAST(:d AS text))")
    record = sqlalchemy.text(
        "SELECT idem_record_effects(CAST(:id AS text), CAST(:d AS text), CAST(:e AS jsonb))"
    )
    update = sqlalchemy.text(UPDATE)

    def by_hand() -> None:
        message_id = str(uuid.uuid4())
        if connection.execute(claim, {"id": message_id, "d": "d"}).fetchall()[0][0]:
            connection.execute(update)
            document = json.dumps([{"topic": "receipts", "payload": PAYLOAD}])
            connection.execute(record, {"id": message_id, "d": "d", "e": document}).fetchall()
        connection.commit()

    def with_package() -> None:
        message_id = str(uuid.uuid4())
        idem = Idem(connection)
        if idem.try_claim(message_id, "d"):
            connection.execute(update)
            idem.record(message_id, "d", EFFECT)
        connection.commit()

    return by_hand, with_package


def asyncpg_sides() -> tuple[Side, Side]:
    loop = asyncio.new_event_loop()
    connection: Any = loop.run_until_complete(asyncpg.connect())
    claim = "SELECT idem_try_claim(CAST($1 AS text), CAST($2 AS text))"
    record = "SELECT idem_record_effects(CAST($1 AS text), CAST($2 AS text), CAST($3 AS jsonb))"

    async def by_hand() -> None:
        message_id = str(uuid.uuid4())
        async with connection.transaction():
            if (await connection.fetch(claim, message_id, "d"))[0][0]:
                await connection.execute(UPDATE)
                document = json.dumps([{"topic": "receipts", "payload": PAYLOAD}])
                await connection.fetch(record, message_id, "d", document)

    async def with_package() -> None:
        message_id = str(uuid.uuid4())
        async with connection.transaction():
            idem = AsyncIdem(connection)
            if await idem.try_claim(message_id, "d"):
                await connection.execute(UPDATE)
                await idem.record(message_id, "d", EFFECT)

    return (
        lambda: loop.run_until_complete(by_hand()),
        lambda: loop.run_until_complete(with_package()),
    )


def microseconds(side: Side) -> float:
    """Returns the time per message of one run."""
    begun = time.perf_counter()
    for _ in range(MESSAGES):
        side()
    return (time.perf_counter() - begun) / MESSAGES * 1e6


def main() -> None:
    with psycopg.connect(autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS overhead")
        connection.execute("CREATE TABLE overhead (n int)")
        connection.execute("INSERT INTO overhead VALUES (0)")
        settings = connection.execute(
            "SELECT string_agg(name || ' = ' || setting, ', ' ORDER BY name) FROM pg_settings "
            "WHERE name IN ('server_version', 'synchronous_commit', 'fsync')"
        ).fetchone()
    print(f"{settings and settings[0]}; {ROUNDS} rounds of {MESSAGES} messages")
    drivers = {"psycopg": psycopg_sides, "SQLAlchemy": sqlalchemy_sides, "asyncpg": asyncpg_sides}
    for name, sides in drivers.items():
        by_hand, with_package = sides()
        pairs = []
        for number in range(ROUNDS + 1):
            if number % 2:
                pair = (microseconds(by_hand), microseconds(with_package))
            else:
                pair = (microseconds(with_package), microseconds(by_hand))[::-1]
            pairs.append(pair)
        del pairs[0]  # the first round warms up
        hand, package = (statistics.median(times) for times in zip(*pairs, strict=True))
        ratio = statistics.median(package / hand for hand, package in pairs)
        print(f"{name}: by hand {hand:.0f} us, package {package:.0f} us, ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
