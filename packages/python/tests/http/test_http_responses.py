"""Which responses are recorded, and which of their headers."""

from __future__ import annotations

import json

import pytest
from conftest import until
from http_app import build
from http_fixtures import (
    DRIVERS,
    KINDS,
    MODES,
    OTHER_DRIVERS,
    TRANSACTIONS,
    Ask,
    Fixture,
    ask,
    call,
    run,
    service,
    task_names,
)


@pytest.mark.parametrize("kind", KINDS)
def test_transient_failure_is_not_recorded_and_runs_again(kind: str) -> None:
    with service(**KINDS[kind]) as fixture:
        runs = 0
        for status in (500, 502, 503, 504, 409, 429):
            for _ in range(2):
                runs += 1
                failed = ask("k").with_header("x-status", str(status))
                fixture.send(failed).assert_run(status, runs)
                assert fixture.claims() == 0
        if kind in TRANSACTIONS:
            fixture.database.assert_untouched()
        done = fixture.send(ask("k"))
        done.assert_run(201, runs + 1)
        fixture.send(ask("k").with_header("x-status", "500")).assert_replay_of(done)


@pytest.mark.parametrize("kind", KINDS)
def test_success_redirection_and_client_error_are_recorded(kind: str) -> None:
    with service(**KINDS[kind]) as fixture:
        statuses = [200, 201, 202, 303, 308, 400, 402, 404, 422]
        for number, status in enumerate(statuses, 1):
            key = f"status-{status}"
            first = fixture.send(ask(key).with_header("x-status", str(status)))
            first.assert_run(status, number)
            fixture.send(ask(key)).assert_replay_of(first)
        assert (fixture.runs, fixture.claims()) == (9, 9)


@pytest.mark.parametrize("kind", KINDS)
def test_cookies_and_connection_headers_are_not_recorded(kind: str) -> None:
    with service(**KINDS[kind]) as fixture:
        first = fixture.send(ask("k"))
        assert "session=secret" in str(first.header("set-cookie"))
        # The WSGI server of the tests rejects headers of the connection.
        assert first.header("x-hop") == (None if "django" in kind else "1")
        again = fixture.send(ask("k"))
        again.assert_replay_of(first)
        for name in ("x-other", "content-type"):
            assert again.header(name) == first.header(name)
        assert again.header("set-cookie") is None
        assert again.header("x-hop") is None
        assert again.header("content-length") == str(len(again.body))
        recorded = fixture.database.recorded()
        assert "x-other" in recorded
        for name in ("secret", '"date"', "x-hop", '"connection"', "content-length"):
            assert name not in recorded


@pytest.mark.parametrize("kind", KINDS)
def test_keep_headers_selects_the_recorded_headers(kind: str) -> None:
    kept = ("x-run", "connection", "set-cookie", "date")
    with service(**KINDS[kind], kept_headers=kept) as fixture:
        first = fixture.send(ask("k"))
        again = fixture.send(ask("k"))
        again.assert_replay_of(first)
        assert (again.header("x-other"), again.header("content-type")) == (None, None)
        assert again.header("set-cookie") == first.header("set-cookie")
        assert '"date"' not in fixture.database.recorded()
        assert '"connection"' not in fixture.database.recorded()


OF_SQLALCHEMY = [driver for driver in OTHER_DRIVERS if "+" in driver]
IN_TRANSACTION = ["asyncpg", *OTHER_DRIVERS, "django"]


@pytest.mark.parametrize("driver", IN_TRANSACTION)
def test_client_error_rolls_back_the_writes(driver: str) -> None:
    """Goal: a 4xx response is recorded without the writes, unless the handler keeps them."""
    with service(driver=driver) as fixture:
        rejected = fixture.send(ask("k").with_header("x-status", "402"))
        rejected.assert_run(402, 1)
        assert (fixture.work("k"), fixture.claims()) == (0, 1)
        fixture.send(ask("k")).assert_replay_of(rejected)
        kept = ask("kept").with_header("x-status", "402").with_header("x-keep-writes")
        fixture.send(kept).assert_run(402, 2)
        assert (fixture.work("kept"), fixture.claims()) == (2, 2)


@pytest.mark.parametrize("driver", IN_TRANSACTION)
def test_failed_statement_permits_to_record_errors_only(driver: str) -> None:
    with service(driver=driver) as fixture:
        failing = ask("k").with_header("x-fail")
        rejected = fixture.send(failing.with_header("x-status", "422"))
        rejected.assert_run(422, 1)
        fixture.send(ask("k")).assert_replay_of(rejected)
        pretended = ask("pretended").with_header("x-fail")
        fixture.send(pretended).assert_problem(500, "failed")
        assert (fixture.work("pretended"), fixture.claims()) == (0, 1)
        fixture.send(ask("pretended")).assert_run(201, 3)


def ending(key: str, statements: str, status: str) -> Ask:
    """Returns a request whose handler executes statements, ignores their errors, and returns."""
    request = ask(key).with_header("x-end", statements).with_header("x-ignore-end")
    return request.with_header("x-status", status)


# The server rejects these statements, so the rollback to the savepoint repairs the transaction.
REPAIRED = ["COMMIT", "COMMIT AND CHAIN", "SET LOCAL search_path = pg_catalog"]
ENDED = ["ROLLBACK", "ROLLBACK; BEGIN"]
# A connection of asyncpg has no such methods, and that of Django rejects them.
METHODS = ["method commit", "method rollback"]


@pytest.mark.parametrize("driver", IN_TRANSACTION)
def test_handler_that_ends_its_transaction_fails(driver: str) -> None:
    """Goal: nothing that the handler wrote before is committed, and a repeated request runs."""
    others = METHODS if driver in OTHER_DRIVERS else []
    with service(driver=driver) as fixture:
        for end in [*REPAIRED, *ENDED, *others]:
            assert_nothing_is_committed(fixture, end)


def assert_nothing_is_committed(fixture: Fixture, end: str) -> None:
    success, transient, rejected = (f"{end}, {kind}" for kind in ("success", "503", "402"))
    claims = fixture.claims()
    fixture.send(ending(success, end, "201")).assert_problem(500, "failed")
    fixture.send(ending(transient, end, "503")).assert_run(503, fixture.runs)
    response = fixture.send(ending(rejected, end, "402"))
    is_repaired = response.status == 402
    if is_repaired:
        assert end not in (*ENDED, "method rollback")
        fixture.send(ask(rejected)).assert_replay_of(response)
    else:
        assert end not in REPAIRED
        response.assert_problem(500, "failed")
    fixture.database.until_quiet()
    assert [fixture.work(key) for key in (success, transient, rejected)] == [0, 0, 0]
    assert fixture.claims() - claims == int(is_repaired)
    for key in (success, transient):
        done = fixture.send(ask(key))
        done.assert_run(201, fixture.runs)
        fixture.send(ask(key)).assert_replay_of(done)
        assert fixture.work(key) == 2


@pytest.mark.parametrize("driver", OF_SQLALCHEMY)
@pytest.mark.parametrize("end", ["method commit;method rollback", "method commit;method close"])
def test_rejected_commit_leaves_no_transaction_in_the_pool(driver: str, end: str) -> None:
    """Goal: the next user of the connection does not get the failed transaction."""
    with service(driver=driver, pool_size=1) as fixture:
        fixture.send(ending("k", end, "201")).assert_problem(500, "failed")
        fixture.database.until_quiet()
        fixture.send(ask("k")).assert_run(201, 2)
        fixture.send(ending("transient", end, "503")).assert_run(503, 3)
        fixture.send(ask("transient")).assert_run(201, 4)
        assert (fixture.work("k"), fixture.claims()) == (2, 2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("driver", ["psycopg", *OF_SQLALCHEMY])
def test_source_in_autocommit_mode_is_rejected(mode: str, driver: str) -> None:
    """Goal: the claim and the record are never two commits."""
    with service(mode=mode, driver=driver, autocommit=True) as fixture:
        fixture.send(ask("k")).assert_problem(500, "failed")
        assert fixture.runs == 0
        fixture.database.assert_untouched()


@pytest.mark.parametrize("mode", MODES)
def test_header_that_cannot_be_sent_is_not_recorded(mode: str) -> None:
    with service(mode=mode) as fixture:
        app = build(fixture.config, fixture.state)
        start, body = run(call(app, ask("k").with_header("x-bad-header")))
        problem = (503, "in-doubt") if mode == "lease" else (500, "failed")
        assert (start["status"], json.loads(body["body"])["type"]) == (
            problem[0],
            f"urn:idem:{problem[1]}",
        )
        assert fixture.claims() == 0


@pytest.mark.parametrize("driver", IN_TRANSACTION)
def test_commit_of_the_handler_is_rejected_by_the_server(driver: str) -> None:
    with service(driver=driver) as fixture:
        ended = fixture.send(ask("k").with_header("x-end", "COMMIT"))
        assert ended.status == 500
        assert b"COMMIT" in ended.body
        fixture.database.until_quiet()
        fixture.database.assert_untouched()


@pytest.mark.parametrize("driver", DRIVERS)
def test_transaction_of_a_request_fails_after_the_response(driver: str) -> None:
    with service(driver=driver) as fixture:
        fixture.send(ask("k").with_header("x-keep-connection")).assert_run(201, 1)
        with pytest.raises(RuntimeError, match="has ended"):
            _ = fixture.state.kept[0].connection


@pytest.mark.parametrize("mode", MODES)
def test_background_task_runs_after_a_commit_only(mode: str) -> None:
    with service(mode=mode, response_limit=1000) as fixture:
        request = ask("k").with_header("x-background")
        large = fixture.send(request.with_header("x-size", "2000"))
        large.assert_problem(500, "response-too-large")
        fixture.send(request.with_header("x-status", "503")).assert_run(503, 2)
        until("the application has ended", lambda: run(task_names()) == [])
        assert fixture.state.background == 0
        fixture.send(request).assert_run(201, 3)
        until("the background task has run", lambda: fixture.state.background == 1)
        fixture.send(request)
        assert fixture.state.background == 1


def test_background_task_waits_for_the_commit() -> None:
    with service() as fixture:
        fixture.database.wait_at_commit()
        with fixture.database.locked():
            sent = fixture.start(ask("k").with_header("x-background"))
            fixture.database.until_waiting()
            assert fixture.state.background == 0
        sent.result().assert_run(201, 1)
        until("the background task has run", lambda: fixture.state.background == 1)
