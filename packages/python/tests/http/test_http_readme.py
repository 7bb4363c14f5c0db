"""The service of the README."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg
from http_fixtures import Ask, Message, ask, call, run

README = Path(__file__).parents[2] / "README.md"


def example(name: str) -> dict[str, Any]:
    """Executes the example that contains this text, and returns its names."""
    examples = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    (found,) = [example for example in examples if name in example]
    names: dict[str, Any] = {}
    exec(compile(found, str(README), "exec"), names)
    return names


async def sent_twice(names: dict[str, Any], request: Ask) -> list[list[Message]]:
    app = names["app"]
    async with app.router.lifespan_context(app):
        return [await call(app, request) for _ in range(2)]


def test_service_of_the_readme_places_one_order(observer: psycopg.Connection) -> None:
    observer.execute("DROP TABLE IF EXISTS orders")
    observer.execute("CREATE TABLE orders (item text)")
    observer.execute(
        "SELECT idem_forget(id, destination) FROM idem.inbox WHERE destination = 'shop.place-order'"
    )
    request = ask("k").to(path="/orders?item=book").with_header("x-account", "a")
    first, again = run(sent_twice(example("FastAPI("), request))
    assert first[0]["status"] == again[0]["status"] == 201
    assert again[1]["body"] == first[1]["body"] == b'{"item":"book"}'
    assert (b"idempotency-replayed", b"true") in again[0]["headers"]
    assert observer.execute("SELECT item FROM orders").fetchall() == [("book",)]
    observer.execute("DROP TABLE orders")
