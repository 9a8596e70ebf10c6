"""Waits that end with their condition; the limits only end hanging tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from kfm_dagster.storage.database import Database

HANG_SECONDS = 1500
"""Several times as long as the slowest test of a deployment takes on two processors beside other tests."""
LOCK_SECONDS = 60
"""Many times the duration until one transaction waits for another."""


def until(there: Callable[[], Any], shown: Callable[[], str] = lambda: "the condition is still false") -> Any:
    """Return the value of `there` once it is true; `shown` describes a timeout."""
    deadline = time.monotonic() + HANG_SECONDS
    while not (awaited := there()):
        assert time.monotonic() < deadline, shown()
        time.sleep(0.2)
    return awaited


def await_a_wait(database: Database, other: Future[Any]) -> None:
    """Return once a transaction waits for a lock or `other` is done; immediately on SQLite."""
    waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    deadline = time.monotonic() + LOCK_SECONDS
    while database.dialect == "postgresql" and not other.done():
        with database.engine.connect() as connection:
            if connection.exec_driver_sql(waiting).first() is not None:
                return
        assert time.monotonic() < deadline, "no transaction waits"
