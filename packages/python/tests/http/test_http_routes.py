"""Which routes of an application are protected, and several middlewares in one application."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import SimpleTemplateResponse
from django.test import Client, RequestFactory
from django.test.utils import override_settings
from django.urls import path
from django.utils.decorators import decorator_from_middleware, method_decorator
from django.views import View
from http_app import opened
from http_fixtures import MODES, Ask, Database, ask, call, database, run
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from idem_pg.http import IdempotencyMiddleware, Options, RequestTransaction, Scope
from idem_pg.http.django import IdempotencyMiddleware as DjangoMiddleware
from idem_pg.http.django import idempotent_view
from idem_pg.http.django import request_transaction as django_transaction

OTHER_ROUTES = [
    ask("k").to(path="/login").without_key(),
    ask("k").to(path="/login"),
    ask("k").to(path="/orders/7").without_key(),
]


class Application:
    """An application of Starlette with a middleware for each entry of `applies_to`."""

    def __init__(self, found: Database, mode: Any, *applies_to: Any) -> None:
        self.runs: list[str] = []
        self._config = found.config()
        paths = ["/orders", "/orders/7", "/payments/7", "/login"]
        self._routes = [Route(path, self._handle, methods=["POST"]) for path in paths]
        self._options = [
            Options(f"{found.destination}.{number}", Scope.single_tenant(), routes, mode=mode)
            for number, routes in enumerate(applies_to)
        ]

    async def _handle(self, request: Request) -> Response:
        self.runs.append(request.url.path)
        return Response(f"{len(self.runs)}", 201)

    def sent(self, *requests: Ask, is_mounted: bool = False) -> list[tuple[int, bytes]]:
        """Returns the status and the body of the response to each request."""
        return run(self._sent(requests, is_mounted))

    async def _sent(self, requests: tuple[Ask, ...], is_mounted: bool) -> list[tuple[int, bytes]]:
        async with opened(self._config) as source:
            app = Starlette(routes=self._routes)
            for options in self._options:
                app.add_middleware(IdempotencyMiddleware, source=source, options=options)
            service = Starlette(routes=[Mount("/shop", app)]) if is_mounted else app
            sent = [await call(service, request) for request in requests]
        return [(messages[0]["status"], messages[1]["body"]) for messages in sent]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("applies_to", [["/orders"], lambda head: head.path == "/orders"])
def test_request_to_another_route_passes_unchanged(mode: str, applies_to: Any) -> None:
    with database() as found:
        app = Application(found, mode, applies_to)
        assert app.sent(*OTHER_ROUTES) == [(201, b"1"), (201, b"2"), (201, b"3")]
        found.assert_untouched()
        assert app.sent(ask("k"), ask("k")) == [(201, b"4"), (201, b"4")]
        assert app.sent(ask("k").without_key())[0][0] == 400


@pytest.mark.parametrize("mode", MODES)
def test_middlewares_for_different_routes_coexist(mode: str) -> None:
    with database() as found:
        app = Application(found, mode, ["/orders"], ["/payments/*"])
        payment = ask("k").to(path="/payments/7")
        assert app.sent(ask("k"), payment) == [(201, b"1"), (201, b"2")]
        assert app.sent(ask("k"), payment) == [(201, b"1"), (201, b"2")]
        assert app.runs == ["/orders", "/payments/7"]


@pytest.mark.parametrize("mode", MODES)
def test_two_middlewares_for_one_route_fail_before_the_handler(mode: str) -> None:
    with database() as found:
        app = Application(found, mode, ["/orders"], ["/*"])
        for status, body in app.sent(ask("k"), ask("k")):
            assert status == 500
            assert b"two idempotency middlewares apply" in body
        assert app.runs == []
        found.assert_untouched()


def test_mounted_application_has_the_paths_of_its_own_routes() -> None:
    with database() as found:
        app = Application(found, "transaction", ["/orders"])
        order, login = ask("k").to(path="/shop/orders"), ask("k").to(path="/shop/login")
        sent = app.sent(order, order, login.without_key(), is_mounted=True)
        assert sent == [(201, b"1"), (201, b"1"), (201, b"2")]


class Orders(DjangoMiddleware):
    scope = Scope.single_tenant()
    applies_to = ("/orders",)
    methods = ("POST",)


class Payments(Orders):
    @staticmethod
    def applies_to(request: HttpRequest) -> bool:  # type: ignore[override]
        return str(request.path_info).startswith("/payments/")


class Everything(Orders):
    applies_to = ("/*",)


class Views:
    """The views, as a module of URLs. Each inserts a row into the table of the test."""

    def __init__(self, found: Database) -> None:
        self.database = found
        self.runs = 0
        self.client = Client(raise_request_exception=False)
        names = ["orders", "orders/7", "payments/7", "login"]
        self.urlpatterns: list[Any] = [path(name, self.view) for name in names]

    def view(self, request: HttpRequest, **arguments: Any) -> HttpResponse:
        self.runs += 1
        if isinstance(getattr(request, "idem", None), RequestTransaction):
            with django_transaction(request).connection.cursor() as cursor:
                cursor.execute(f"INSERT INTO {self.database.table} VALUES ('row')")
        if "x-missing" in request.headers:
            raise Http404
        return HttpResponse(f"{self.runs}{arguments or ''}", status=201)

    def post(self, name: str, key: str | None = "k", **headers: str) -> tuple[int, bytes]:
        keys = {} if key is None else {"idempotency-key": key}
        response = self.client.post(name, {"a": "b"}, headers=keys | headers)
        return response.status_code, response.content


@contextlib.contextmanager
def views(*middlewares: type[DjangoMiddleware]) -> Iterator[Views]:
    with database() as found:
        served = Views(found)
        with override_settings(
            ALLOWED_HOSTS=["*"],
            ROOT_URLCONF=served,
            IDEM_HTTP={"DESTINATION": found.destination},
            MIDDLEWARE=[f"{__name__}.{middleware.__name__}" for middleware in middlewares],
        ):
            yield served


def test_middlewares_of_django_for_different_routes_coexist() -> None:
    with views(Orders, Payments) as served:
        for name in ("/login", "/orders/7"):
            assert served.post(name, key=None)[0] == 201
        served.database.assert_untouched()
        assert served.post("/orders") == served.post("/orders") == (201, b"3")
        assert served.post("/payments/7", "p") == served.post("/payments/7", "p") == (201, b"4")
        assert served.post("/orders", key=None)[0] == 400
        assert (served.database.rows(), served.database.claims()) == (2, 2)


def test_two_middlewares_of_django_for_one_route_fail() -> None:
    with views(Everything, Orders) as served:
        status, body = served.post("/orders")
        assert (status, served.runs) == (500, 0)
        assert b"two idempotency middlewares apply" in body
        served.database.assert_untouched()


def test_single_pattern_in_the_setting_is_rejected() -> None:
    setting = {"DESTINATION": "d", "SCOPE": Scope.single_tenant(), "APPLIES_TO": "/orders"}
    with override_settings(IDEM_HTTP=setting):
        with pytest.raises(ImproperlyConfigured, match="not one text"):
            DjangoMiddleware(lambda request: None)


def test_decorator_of_django_fails_instead_of_doing_nothing() -> None:
    with views() as served:
        decorated = decorator_from_middleware(Orders)(served.view)
        with pytest.raises(ImproperlyConfigured, match="idempotent_view"):
            decorated(RequestFactory().post("/orders", HTTP_IDEMPOTENCY_KEY="k"))
        assert served.runs == 0


@pytest.mark.parametrize("mode", ["transaction", "lease"])
@pytest.mark.parametrize("is_atomic", [False, True])
def test_decorated_view_takes_effect_once(
    monkeypatch: pytest.MonkeyPatch, mode: str, is_atomic: bool
) -> None:
    from django.db import connections

    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", is_atomic)
    with views() as served:
        destination, scope = served.database.destination, Scope.single_tenant()
        once = idempotent_view(destination, scope, mode=mode)
        items = path("items/<int:number>", once(served.view))
        served.urlpatterns = [items, path("login", served.view)]
        first = served.post("/items/7")
        assert first[0] == 201
        assert served.post("/items/7") == first
        assert served.post("/items/8")[0] == 422
        assert served.post("/items/7", key=None)[0] == 400
        assert (served.runs, served.database.claims()) == (1, 1)
        assert served.post("/login", key=None)[0] == 201
        assert served.database.rows() == (mode == "transaction")


def test_decorated_view_that_raises_is_rolled_back() -> None:
    with views() as served:
        once = idempotent_view(served.database.destination, Scope.single_tenant())
        served.urlpatterns = [path("items", once(served.view))]
        assert served.post("/items", **{"x-missing": "1"})[0] == 404
        served.database.assert_untouched()
        assert served.post("/items") == (201, b"2")


class Rendered(SimpleTemplateResponse):  # type: ignore[misc]
    rendered_content = "rendered"


def test_decorated_class_and_template_are_recorded() -> None:
    with views() as served:
        once = idempotent_view(served.database.destination, Scope.single_tenant())

        @method_decorator(once, name="dispatch")
        class Items(View):  # type: ignore[misc]
            def post(self, request: HttpRequest) -> HttpResponse:
                served.runs += 1
                return Rendered("no file", status=201)

        served.urlpatterns = [path("items", Items.as_view())]
        assert served.post("/items") == served.post("/items") == (201, b"rendered")
        assert served.runs == 1


def test_decorated_coroutine_function_is_rejected() -> None:
    async def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    once = idempotent_view("d", Scope.single_tenant())
    with pytest.raises(TypeError, match="coroutine"):
        once(view)
    with pytest.raises(ImproperlyConfigured, match="mode must be"):
        idempotent_view("d", Scope.single_tenant(), mode="leased")
