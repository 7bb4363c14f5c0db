"""A request whose task the server cancels, and one whose body ends early, without a server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conftest import until
from http_app import build
from http_fixtures import MODES, Ask, Fixture, ask, call, run, service, start_task

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
