"""The services of the README."""

from __future__ import annotations

import importlib
import re
import sys
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connections
from django.test import Client, RequestFactory
from django.test.utils import override_settings
from http_fixtures import Ask, Message, ask, call, run

from idem_pg import OnUnknown

README = Path(__file__).parents[2] / "README.md"


def examples(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), flags=re.DOTALL)


def executed(texts: list[str], **names: Any) -> dict[str, Any]:
    """Executes the examples that contain these texts, and returns their names."""
    for text in texts:
        (found,) = [example for example in examples("python") if text in example]
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


def authenticated(get_response: Any) -> Any:
    """The middleware of the tests that authenticates."""

    def respond(request: Any) -> Any:
        request.user = User(request.headers.get("x-user", ""))
        return get_response(request)

    return respond


def files_of(example: str) -> dict[str, str]:
    """Returns the files of an example. A comment with its path begins each of them."""
    parts = re.split(r"^# (\S+\.py).*$", example, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture
def role(observer: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The role of the service of Django, which has no privileges yet."""
    observer.execute("DROP TABLE IF EXISTS orders, public.orders")
    observer.execute("CREATE TABLE public.orders (item text)")
    role = f"shop_{uuid.uuid4().hex[:12]}"
    observer.execute(f"CREATE ROLE {role} LOGIN; GRANT INSERT ON orders TO {role}".encode())
    with monkeypatch.context() as changed:
        changed.setitem(connections.settings["default"], "USER", role)
        connections.close_all()
        yield role
    connections.close_all()
    observer.execute(f"DROP TABLE orders; DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_service_of_django_in_the_readme_places_one_order(
    role: str,
    observer: psycopg.Connection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    message_id: str,
) -> None:
    """Goal: the README contains all that a service needs, also the privileges of its role."""
    (sql,) = [example for example in examples("sql") if "'shop'" in example]
    observer.execute(sql.replace("'shop'", f"'{role}'").encode())
    count_sent = "SELECT count(*) FROM idem.outbox WHERE topic = 'orders.placed'"
    (before,) = observer.execute(count_sent).fetchall()
    (example,) = [example for example in examples("python") if "MIDDLEWARE" in example]
    (tmp_path / "shop").mkdir()
    for name, text in files_of(example).items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    found = importlib.import_module("shop.settings")
    authenticating = "django.contrib.auth.middleware.AuthenticationMiddleware"
    assert found.MIDDLEWARE[-2:] == [authenticating, "shop.orders.OrderKeys"]
    middleware = [f"{__name__}.authenticated", found.MIDDLEWARE[-1]]
    with override_settings(
        MIDDLEWARE=middleware, ROOT_URLCONF=found.ROOT_URLCONF, ALLOWED_HOSTS=["*"]
    ):
        keys = {"idempotency-key": message_id}
        post = partial(Client().post, "/orders", {"item": "book"})
        assert post(headers=keys).status_code == 403
        first, again = (post(headers={**keys, "x-user": "a"}) for _ in range(2))
    assert first.status_code == again.status_code == 201
    assert again.headers["idempotency-replayed"] == "true"
    assert again.content == first.content == b'{"item": "book"}'
    assert observer.execute("SELECT item FROM orders").fetchall() == [("book",)]
    assert observer.execute(count_sent).fetchall() == [(before[0] + 1,)]
    for name in ("shop.orders", "shop.settings", "shop"):
        del sys.modules[name]


def test_view_of_the_readme_charges_once(message_id: str) -> None:
    made: list[str] = []

    def charge(key: str) -> dict[str, str]:
        made.append(key)
        return {"receipt": "r-1"}

    names = executed(["class OrderKeys", "def pay("], OnUnknown=OnUnknown, charge=charge)

    def sent_by(name: str) -> Any:
        request = RequestFactory().post("/pay", HTTP_IDEMPOTENCY_KEY=message_id)
        request.user = User(name)
        return names["pay"](request)

    assert sent_by("").status_code == 403
    first, again = sent_by("a"), sent_by("a")
    assert first.status_code == again.status_code == 201
    assert again.headers["idempotency-replayed"] == "true"
    assert again.content == first.content == b'{"receipt": "r-1"}'
    assert len(made) == 1
