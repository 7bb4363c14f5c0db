"""The examples of the README."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg
import pytest

from idem_pg import Duplicate

README = Path(__file__).parents[1] / "README.md"


def test_examples_run(
    observer: psycopg.Connection,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The examples also run with a role whose default `reject` does not accept.
    monkeypatch.setenv("PGOPTIONS", r"-c default_transaction_isolation=repeatable\ read")
    observer.execute("DROP TABLE IF EXISTS account, greeted")
    observer.execute("CREATE TABLE account (id int PRIMARY KEY, balance int)")
    observer.execute("CREATE TABLE greeted (id text)")
    observer.execute("INSERT INTO account VALUES (7, 1000)")
    observer.execute(
        "SELECT idem_forget(id, destination) FROM idem.inbox "
        "WHERE destination IN ('billing.charge', 'mail.welcome', 'tools.refund')"
    )
    examples = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(examples) == 9
    names: dict[str, Any] = {}
    for example in examples:
        exec(compile(example, str(README), "exec"), names)
    assert observer.execute("SELECT balance FROM account").fetchall() == [(498,)]
    assert observer.execute("SELECT id FROM greeted").fetchall() == [("user-1",)]
    lines = capsys.readouterr().out.splitlines()
    assert lines == [*["acknowledge"] * 3, "welcome", str(Duplicate())]
    letters = observer.execute(
        "SELECT payload, last_error LIKE 'Mismatch%' FROM idem.dead_letters "
        "WHERE destination = 'billing.charge'"
    )
    assert letters.fetchall() == [(b"2", True)]
    assert not names["is_redelivered"]
    observer.execute("DROP TABLE account, greeted")
