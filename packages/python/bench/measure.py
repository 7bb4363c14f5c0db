"""Measures two sides in turn, and prints their medians and the median of the ratios."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import psycopg

ROUNDS, MESSAGES = [*map(int, sys.argv[1:]), 21, 500][:2] if len(sys.argv) > 1 else [21, 500]
UPDATE = "UPDATE overhead SET n = n + 1"

Side = Callable[[], None]


def prepare() -> None:
    """Creates the table of the update, and prints the settings."""
    with psycopg.connect(autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS overhead")
        connection.execute("CREATE TABLE overhead (n int)")
        connection.execute("INSERT INTO overhead VALUES (0)")
        settings = connection.execute(
            "SELECT string_agg(name || ' = ' || setting, ', ' ORDER BY name) FROM pg_settings "
            "WHERE name IN ('server_version', 'synchronous_commit', 'fsync')"
        ).fetchone()
    print(f"{settings and settings[0]}; {ROUNDS} rounds of {MESSAGES} messages")


def compare(name: str, by_hand: Side, with_package: Side) -> None:
    """Executes both sides in each round, the first one alternating."""
    pairs = []
    for number in range(ROUNDS + 1):
        if number % 2:
            pair = (_microseconds(by_hand), _microseconds(with_package))
        else:
            pair = (_microseconds(with_package), _microseconds(by_hand))[::-1]
        pairs.append(pair)
    del pairs[0]  # the first round warms up
    hand, package = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratio = statistics.median(package / hand for hand, package in pairs)
    print(f"{name}: by hand {hand:.0f} us, package {package:.0f} us, ratio {ratio:.3f}")


def _microseconds(side: Side) -> float:
    """Returns the time per message of one run."""
    begun = time.perf_counter()
    for _ in range(MESSAGES):
        side()
    return (time.perf_counter() - begun) / MESSAGES * 1e6
