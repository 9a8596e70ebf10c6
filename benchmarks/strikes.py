"""Faults of a PostgreSQL server while units are ingested, besides the kills of its clients.

Belongs here: the strikes. Does not belong here: their times (`campaign.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

import sqlalchemy as sa

from benchmarks.postgres import RestartablePostgres

EXHAUSTED_SECONDS = 3.0
"""Time without a free connection: enough for some attempts of every process, and less than a lease."""
END_BACKENDS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'
"""

Strike = Callable[[], None]


def strikes_on(server: RestartablePostgres) -> Sequence[Strike]:
    """Return the strikes: a crash, the end of every session, and a time without free connections."""

    def end_backends() -> None:
        with _engine(server).connect() as connection:
            connection.execute(sa.text(END_BACKENDS))

    def exhaust_connections() -> None:
        engine = _engine(server)
        with ExitStack() as held:
            until = time.monotonic() + EXHAUSTED_SECONDS
            while time.monotonic() < until:
                # Refused when no connection is free; connections that processes release meanwhile are taken, too.
                with suppress(sa.exc.OperationalError):
                    while True:
                        held.enter_context(engine.connect())
                time.sleep(0.05)

    return (server.crash_and_restart, end_backends, exhaust_connections)


def _engine(server: RestartablePostgres) -> sa.Engine:
    return sa.create_engine(server.url, poolclass=sa.NullPool)
