"""A request whose task the server cancels, and one whose body ends early, without a server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conftest import until
from http_app import build
from http_fixtures import MODES, Ask, Fixture, Message, ask, call, run, service, start_task

from idem_pg.http import IdempotencyMiddleware, Options, Scope

HELD = ask("k").with_header("x-hold")


def app_of(fixture: Fixture) -> Any:
    """Returns an application over the connections of a service."""
    return build(fixture.config, fixture.state)


@pytest.mark.parametrize("mode", MODES)
def test_body_that_ends_early_gets_400(mode: str) -> None:
    """Goal: the handler never works on a part of a body."""
    with service(mode=mode) as fixture:
        start, body = run(call(app_of(fixture), ask("k"), is_complete=False))
        assert start["status"] == 400
        assert b"urn:idem:unreadable-request" in body["body"]
        assert fixture.runs == 0
        fixture.database.assert_untouched()


@pytest.mark.parametrize("mode", MODES)
def test_response_that_cannot_be_sent_is_recorded(mode: str) -> None:
    """Goal: the tasks after the response run, because the request has taken effect."""
    with service(mode=mode) as fixture:
        request = ask("k").with_header("x-background")
        with pytest.raises(ConnectionResetError):
            run(call(app_of(fixture), request, is_connected=False))
        assert (fixture.state.background, fixture.state.running) == (1, 0)
        assert fixture.send(ask("k")).is_replayed


def test_cancelled_handler_is_rolled_back() -> None:
    with service() as fixture:
        task = start_task(call(app_of(fixture), HELD))
        fixture.until_holding(1)
        assert task.cancel()
        fixture.until_no_handler_runs()
        fixture.database.until_quiet()
        fixture.database.assert_untouched()
        fixture.send(ask("k")).assert_run(201, 2)


async def ended_by_cancel(fixture: Fixture, request: Ask) -> bool:
    """Cancels a request that holds no connection yet. Returns whether its task ends soon."""
    task = asyncio.create_task(call(app_of(fixture), request))
    await asyncio.sleep(0.05)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=2)
    return task in done


def test_cancelled_request_does_not_wait_for_a_connection() -> None:
    with service(pool_size=1) as fixture:
        first = fixture.start(HELD)
        fixture.until_holding(1)
        assert run(ended_by_cancel(fixture, ask("other")))
        fixture.release()
        first.result().assert_run(201, 1)
        fixture.send(ask("other")).assert_run(201, 2)


def middleware_over(fixture: Fixture, inner: Any) -> IdempotencyMiddleware:
    options = Options(fixture.config.destination, Scope.single_tenant(), applies_to=("/*",))
    return IdempotencyMiddleware(inner, fixture.state.source, options)


async def has_ended_before_its_request(fixture: Fixture) -> bool:
    """Cancels a request. Returns whether its handler ended before it."""
    began, ended = asyncio.Event(), asyncio.Event()

    async def slow_to_end(*_: Any) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _step in range(100):
                await asyncio.sleep(0)
            ended.set()

    task = asyncio.create_task(call(middleware_over(fixture, slow_to_end), ask("k")))
    await began.wait()
    task.cancel()
    await asyncio.wait([task])
    return ended.is_set()


def test_cancelled_request_ends_after_its_handler() -> None:
    with service() as fixture:
        assert run(has_ended_before_its_request(fixture))


def test_body_that_is_returned_again_is_read_once() -> None:
    """Goal: a middleware that returns the body again and again does not block the event loop."""
    with service() as fixture:
        app, reads = app_of(fixture), 0

        async def receive() -> Message:
            nonlocal reads
            reads += 1
            if reads > 100:
                await asyncio.Event().wait()
            return {"type": "http.request", "body": b"k", "more_body": False}

        async def wrapped(scope: Any, _receive: Any, send: Any) -> None:
            await app(scope, receive, send)

        assert run(call(wrapped, ask("k")))[0]["status"] == 201
        assert reads == 2


def test_handler_sees_no_extension_that_bypasses_the_record() -> None:
    with service() as fixture:
        seen: list[Any] = []

        async def inner(scope: Any, _receive: Any, send: Any) -> None:
            seen.append(scope["extensions"])
            await send({"type": "http.response.start", "status": 201, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        extensions: dict[str, Any] = {"http.response.pathsend": {}, "tls": {}}
        sent = run(call(middleware_over(fixture, inner), ask("k"), extensions=extensions))
        assert sent[0]["status"] == 201
        assert seen == [{"tls": {}}]


@pytest.mark.parametrize("mode", MODES)
def test_content_length_with_too_many_digits_gets_400(mode: str) -> None:
    with service(mode=mode) as fixture:
        request = ask("k").with_header("content-length", "9" * 5000)
        assert run(call(app_of(fixture), request))[0]["status"] == 400
        assert fixture.runs == 0


def test_cancelled_commit_continues() -> None:
    """Goal: a commit that has begun has its full effect, and the tasks after it run."""
    with service() as fixture:
        fixture.database.wait_at_commit()
        with fixture.database.locked():
            task = start_task(call(app_of(fixture), ask("k").with_header("x-background")))
            fixture.database.until_waiting()
            assert task.cancel()
            fixture.send(ask("k")).assert_problem(409, "in-progress")
        until("the request is committed", lambda: fixture.claims() == 1)
        until("the background task has run", lambda: fixture.state.background == 1)
        assert fixture.send(ask("k")).is_replayed
        assert (fixture.work("k"), fixture.runs) == (2, 1)


def test_cancelled_leased_request_is_recorded() -> None:
    with service(mode="lease") as fixture:
        task = start_task(call(app_of(fixture), HELD))
        fixture.until_holding(1)
        assert task.cancel()
        assert fixture.state.requests.count == 1
        fixture.release()
        until("the response is recorded", lambda: fixture.claims() == 1)
        assert fixture.send(ask("k")).is_replayed
        assert (fixture.work("k"), fixture.runs) == (2, 1)


async def cancelled_after(app: Any, request: Ask, steps: int) -> bool:
    """Cancels a request after a number of steps of the event loop. Returns whether it had ended."""
    task = asyncio.create_task(call(app, request))
    for _ in range(steps):
        if task.done():
            break
        await asyncio.sleep(0)
    had_ended = not task.cancel()
    await asyncio.wait([task])
    return had_ended


def test_request_cancelled_at_any_time_has_full_effect_or_none() -> None:
    with service(pool_size=1) as fixture:
        app = app_of(fixture)
        done, undone = 0, 0
        for attempt in range(200):
            key = f"k-{attempt}"
            # Requests take more steps while the machine is busy.
            had_ended = run(cancelled_after(app, ask(key), attempt * attempt))
            again = fixture.send_until_settled(ask(key))
            assert again.status == 201
            assert fixture.work(key) == 2
            assert again.is_replayed or not had_ended
            done, undone = done + again.is_replayed, undone + (not again.is_replayed)
            if had_ended:
                break
        fixture.database.until_quiet()
        assert had_ended
        assert fixture.claims() == done + undone
        assert done > 0
        assert undone >= 2
