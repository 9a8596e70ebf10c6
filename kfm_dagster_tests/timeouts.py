"""How a test waits, for whole processes and for other transactions: it ends what hangs, and measures nothing.

Belongs here: waiting that ends as soon as what is waited for is there, with a bound that is generous.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from kfm_dagster.storage.database import Database

HANG_SECONDS = 1500
"""Several times what the slowest deployment takes on two processors with the rest of the tests beside it."""
LOCK_SECONDS = 60
"""Many times what a transaction takes until it has to wait for another one."""


def until(there: Callable[[], Any], shown: Callable[[], str] = lambda: "it did not come") -> Any:
    """Return what is there once it is true; `shown` describes what came instead."""
    deadline = time.monotonic() + HANG_SECONDS
    while not (awaited := there()):
        assert time.monotonic() < deadline, shown()
        time.sleep(0.2)
    return awaited


def await_a_wait(database: Database, other: Future[Any]) -> None:
    """Return once another transaction waits for this one, or is over; on SQLite none begins before this one ends."""
    waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    deadline = time.monotonic() + LOCK_SECONDS
    while database.dialect == "postgresql" and not other.done():
        with database.engine.connect() as connection:
            if connection.exec_driver_sql(waiting).first() is not None:
                return
        assert time.monotonic() < deadline, "nobody waits"
