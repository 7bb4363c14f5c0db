"""The package without a server: its surface, values that it rejects, and conversions."""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
import inspect
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, get_args

import psycopg
import pytest
import sqlalchemy
from connections import ENGINE
from psycopg_pool import ConnectionPool

import idem_pg
from idem_pg import AsyncIdem, Claimed, Effect, Expired, Held, Idem, InProgress, Lease, process
from idem_pg.blocking import awaitable, finished
from idem_pg.effects import text_of
from idem_pg.errors import IdemError
from idem_pg.executors import translated
from idem_pg.outcomes import outcome_of
from idem_pg.statements import Call, storable

PACKAGE = Path(__file__).parents[1]


def test_ruff_and_mypy_check_for_the_oldest_version() -> None:
    text = (PACKAGE / "pyproject.toml").read_text()
    (oldest,) = re.findall(r'requires-python = ">=3\.(\d+)"', text)
    assert f'target-version = "py3{oldest}"' in text
    assert f'python_version = "3.{oldest}"' in text


def test_both_classes_have_the_same_methods() -> None:
    def methods(of: type) -> dict[str, Any]:
        functions = inspect.getmembers(of, inspect.isfunction)
        return {name: str(inspect.signature(function)) for name, function in functions}

    assert len(methods(Idem)) > 20
    assert methods(Idem) == methods(AsyncIdem)


def test_blocking_coroutine_raises_what_its_function_raises() -> None:
    for error in (StopIteration("end"), StopAsyncIteration(), KeyboardInterrupt(), KeyError(1)):

        def fail(error: BaseException = error) -> None:
            raise error

        with pytest.raises(type(error)) as caught:
            finished(awaitable(fail)())
        assert caught.value is error


def test_blocking_coroutine_must_not_wait() -> None:
    with pytest.raises(RuntimeError, match="waited for an event loop"):
        finished(asyncio.sleep(0))


def test_import_needs_no_other_package() -> None:
    code = """if True:
        import sys
        import idem_pg, idem_pg.http
        roots = {name.partition(".")[0] for name in sys.modules}
        found = roots & {"asyncpg", "django", "psycopg", "sqlalchemy", "starlette"}
        assert not found, found
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_name_of_the_package_exists() -> None:
    assert sorted(idem_pg.__all__) == idem_pg.__all__
    for name in idem_pg.__all__:
        assert getattr(idem_pg, name).__doc__ or name in (
            "Acquired",
            "MessageId",
            "Outcome",
            "Settlement",
        )


def test_pools_are_rejected() -> None:
    with ConnectionPool(min_size=0, max_size=1, open=False) as pool:
        for wrong in [pool, ENGINE, psycopg, object(), None]:
            with pytest.raises(TypeError, match="needs the connection or session of a transaction"):
                Idem(wrong)
            with pytest.raises(TypeError, match="needs the connection or session of a transaction"):
                AsyncIdem(wrong)


def test_connection_of_the_other_kind_is_rejected(observer: psycopg.Connection) -> None:
    with pytest.raises(TypeError):
        AsyncIdem(observer)
    with pytest.raises(TypeError):
        AsyncIdem(sqlalchemy.orm.Session())


def test_outcomes_that_need_time_are_decoded() -> None:
    assert outcome_of("expired", None) == Expired()
    assert outcome_of("in_progress", None) == InProgress()
    assert outcome_of("claimed", None) == Claimed()
    with pytest.raises(ValueError, match="newer than this package"):
        outcome_of("another", None)


def test_every_outcome_has_its_settlement() -> None:
    outcomes = {
        found: getattr(idem_pg, found).settlement
        for found in idem_pg.__all__
        if isinstance(getattr(getattr(idem_pg, found), "settlement", None), str)
    }
    assert outcomes == {
        "CallRefusedError": "reject",
        "Claimed": "acknowledge",
        "Dead": "acknowledge",
        "Duplicate": "acknowledge",
        "Exhausted": "reject",
        "Expired": "reject",
        "Held": "redeliver",
        "InProgress": "redeliver",
        "Mismatch": "reject",
        "Processed": "acknowledge",
        "ToolBusyError": "redeliver",
        "ToolFailedError": "reject",
        "UnknownResultError": "reject",
    }
    results = {name.__name__ for name in (*get_args(idem_pg.Outcome), *get_args(idem_pg.Acquired))}
    assert results <= outcomes.keys()
    assert set(outcomes.values()) == set(get_args(idem_pg.Settlement))


@pytest.mark.parametrize(
    "effect",
    [
        Effect("t", 1, deliver_after=dt.datetime(2030, 1, 1)),
        Effect("t", float("nan")),
    ],
)
def test_effect_that_cannot_be_recorded_is_rejected(effect: Effect) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        text_of(effect)


@pytest.mark.parametrize("wrong", [{"topic": "t", "payload": 1}, [{"topic": "t"}], "t", 42, None])
def test_value_that_is_no_effect_is_rejected(wrong: Any, observer: psycopg.Connection) -> None:
    held = Held("m", "d", 1, 1, None, dt.timedelta(seconds=1), 0.0)

    def handler(_: Any) -> Any:
        return wrong or 42

    for reject in (
        lambda: Idem(observer).record("m", "d", wrong),
        lambda: Idem(observer).try_record("m", "d", wrong),
        lambda: Idem(observer).complete(held, wrong),
        lambda: Idem(observer).send(wrong),
        lambda: Lease(psycopg.connect, held).record(wrong),
        lambda: Lease(psycopg.connect, held).complete(observer, wrong),
        lambda: process(psycopg.connect, f"m-{uuid.uuid4()}", "d", handler),
    ):
        with pytest.raises(TypeError, match=r"is an idem_pg\.Effect, not"):
            reject()


def test_send_rejects_a_delay(observer: psycopg.Connection) -> None:
    later = dt.datetime(2030, 1, 1, tzinfo=dt.timezone.utc)
    with pytest.raises(ValueError, match="deliver_after"):
        Idem(observer).send(Effect("t", 1, deliver_after=later))


def test_one_id_is_no_batch(observer: psycopg.Connection) -> None:
    with pytest.raises(TypeError, match="list of ids"):
        Idem(observer).try_claim_batch("m-1", "d")


@pytest.mark.parametrize("wrong", [None, True, 1.5, b"m-1"])
def test_value_that_is_no_id_is_rejected(wrong: Any, observer: psycopg.Connection) -> None:
    with pytest.raises(TypeError, match="a message id is"):
        Idem(observer).try_claim(wrong, "d")
    with pytest.raises(TypeError, match="a message id is"):
        Idem(observer).try_claim_batch([wrong], "d")


def test_integer_is_an_id() -> None:
    assert Call("f").id(4711).scalar().parameters == ("4711",)


class Kind(str, enum.Enum):
    FIRST = "m-1"


def test_value_of_an_enum_is_an_id() -> None:
    assert Call("f").id(Kind.FIRST).scalar().parameters == ("m-1",)


@pytest.mark.parametrize(
    ("sqlstate", "retryable"),
    [
        (None, True),
        ("08006", True),
        ("57P01", True),
        ("40001", True),
        ("40P01", True),
        ("55P03", True),
        ("22023", False),
        ("55000", False),
        ("25P01", False),
    ],
)
def test_errors_that_can_be_retried(sqlstate: str | None, retryable: bool) -> None:
    assert IdemError("text", sqlstate, None).retryable is retryable


def test_value_that_psycopg_cannot_send_is_no_lost_connection() -> None:
    error = psycopg.DataError("a value that cannot be sent")
    assert translated(error) is error


class ServerError(Exception):
    def __init__(self, sqlstate: str, hint: str | None) -> None:
        super().__init__("text")
        self.sqlstate = sqlstate
        if hint is not None:
            self.hint = hint


def test_hint_is_found_in_the_cause_of_an_error() -> None:
    """SQLAlchemy 2.0 hides the hint of asyncpg behind an error with the SQLSTATE."""
    error = ServerError("22023", None)
    error.__cause__ = ServerError("22023", "Use another id.")
    found = translated(error)
    assert isinstance(found, IdemError)
    assert (found.sqlstate, found.hint) == ("22023", "Use another id.")


def test_text_of_an_error_can_be_stored() -> None:
    assert storable("ä\0\ud800") == "ä?"
