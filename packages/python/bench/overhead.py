"""Measures what the package costs: the time per message against the same SQL written by hand.

`python bench/overhead.py [rounds] [messages]` prints the median of each driver and the median of
the ratios of the rounds. A round executes both sides, the first one alternating. PGHOST, PGPORT,
PGUSER and PGDATABASE name a database with the extension. A message is a claim, an update, a record
of one effect and a commit.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import asyncpg
import psycopg
import sqlalchemy
from measure import UPDATE, Side, compare, prepare

from idem_pg import AsyncIdem, Effect, Idem

PAYLOAD = {"cents": 500, "currency": "EUR"}
EFFECT = Effect("receipts", PAYLOAD)
JSON = json.dumps([{"topic": "receipts", "payload": PAYLOAD}])


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


def main() -> None:
    prepare()
    drivers = {"psycopg": psycopg_sides, "SQLAlchemy": sqlalchemy_sides, "asyncpg": asyncpg_sides}
    for name, sides in drivers.items():
        compare(name, *sides())


if __name__ == "__main__":
    main()
