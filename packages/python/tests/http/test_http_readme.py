"""The service of the README."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg
from django.test import RequestFactory
from http_fixtures import Ask, Message, ask, call, run

from idem_pg import OnUnknown
from idem_pg.http import Scope

README = Path(__file__).parents[2] / "README.md"


def executed(texts: list[str], **names: Any) -> dict[str, Any]:
    """Executes the examples that contain these texts, and returns their names."""
    examples = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    for text in texts:
        (found,) = [example for example in examples if text in example]
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
    first, again = run(sent_twice(executed(["FastAPI("]), request))
    assert first[0]["status"] == again[0]["status"] == 201
    assert again[1]["body"] == first[1]["body"] == b'{"item":"book"}'
    assert (b"idempotency-replayed", b"true") in again[0]["headers"]
    assert observer.execute("SELECT item FROM orders").fetchall() == [("book",)]
    observer.execute("DROP TABLE orders")


class User:
    def __init__(self, name: str) -> None:
        self.name = name

    def get_username(self) -> str:
        return self.name


def test_view_of_the_readme_charges_once(message_id: str) -> None:
    keys: list[str] = []

    def charge(key: str) -> dict[str, str]:
        keys.append(key)
        return {"receipt": "r-1"}

    texts = ["class OrderKeys", "class PaymentKeys"]
    names = executed(texts, Scope=Scope, OnUnknown=OnUnknown, charge=charge)
    service = names["PaymentKeys"](names["pay"])

    def sent_by(name: str) -> Any:
        request = RequestFactory().post("/pay", HTTP_IDEMPOTENCY_KEY=message_id)
        request.user = User(name)
        return service(request)

    assert sent_by("").status_code == 403
    first, again = sent_by("a"), sent_by("a")
    assert first.status_code == again.status_code == 201
    assert again.headers["idempotency-replayed"] == "true"
    assert again.content == first.content == b'{"receipt": "r-1"}'
    assert len(keys) == 1
