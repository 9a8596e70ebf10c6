"""The recorded readings of this machine's clock (`clock_readings`): append-only, in the order of taking.

Belongs here: writing and reading them. Does not belong here: judging them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime

from kfm_dagster.storage.database import Database
from kfm_dagster.telemetry.clock.kernel import clock_id
from kfm_dagster.telemetry.clock.reading import ClockReading

RECENT = 10_000
"""Readings that are read at most: five weeks of a run every five minutes."""


class ClockLog:
    """Readings of one clock, by default this machine's since it was booted; every other clock's stay out of sight."""

    def __init__(self, database: Database, *, clock: str | None = None) -> None:
        self._database = database
        self._clock = clock_id() if clock is None else clock

    def record(self, readings: Iterable[ClockReading]) -> None:
        """Keep readings, in their order."""
        with self._database.transaction() as tx:
            tx.run_many("clock.record", [{"clock_id": self._clock, **asdict(reading)} for reading in readings])

    def recent(self, *, since: datetime, limit: int = RECENT) -> tuple[ClockReading, ...]:
        """Return the last `limit` readings that were taken at `since` or later, in the order of taking."""
        with self._database.snapshot() as tx:
            readings = tx.rows(ClockReading, "clock.recent", clock_id=self._clock, since=since, limit=limit)
        return tuple(reversed(readings))
