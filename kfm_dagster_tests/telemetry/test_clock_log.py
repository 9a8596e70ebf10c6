"""Recorded readings on both databases: the order of taking, one clock's only, and what a hand may not do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.exc import DBAPIError

from kfm_dagster.storage.database import Database
from kfm_dagster.telemetry.clock.quality import clock_quality
from kfm_dagster.telemetry.clock.reading import ClockLog, ClockReading, ClockState

NOW = datetime(2025, 12, 3, 12, 0, 0, 123456, tzinfo=UTC)


def reading(seconds: float, offset: float | None = 0.25) -> ClockReading:
    return ClockReading(
        at=NOW + timedelta(seconds=seconds),
        source="date:s3" if offset is not None else "kernel",
        offset_seconds=offset,
        uncertainty_seconds=None if offset is None else 0.5,
        state=ClockState.UNKNOWN if offset is not None else ClockState.UNLOCKED,
    )


@pytest.mark.clause("PCS-17")
def test_readings_come_back_as_they_were_in_the_order_of_taking(database: Database) -> None:
    log = ClockLog(database)
    # The clock was set back by an hour before the third.
    taken = [reading(0), reading(10, None), reading(-3590), reading(-3580)]
    log.record(taken[:2])
    log.record(taken[2:])
    assert log.recent(since=NOW - timedelta(days=1)) == tuple(taken)
    assert log.recent(since=NOW - timedelta(days=1), limit=3) == tuple(taken[1:])
    assert log.recent(since=NOW) == tuple(taken[:2])
    [quality] = clock_quality(log.recent(since=NOW - timedelta(days=1)))
    assert (quality.readings, quality.last.delta_t_abs) == (3, 0.25)


@pytest.mark.clause("PCS-10")
def test_nobody_trusts_another_machines_readings(database: Database) -> None:
    ClockLog(database, clock="theirs").record([reading(0)])
    assert ClockLog(database, clock="ours").recent(since=NOW) == ()
    assert ClockLog(database).recent(since=NOW) == ()


def test_a_reading_goes_only_after_a_month(database: Database) -> None:
    ClockLog(database).record([reading(-86400 * days) for days in (29, 31, 0)])
    delete = "DELETE FROM clock_readings"
    with pytest.raises(DBAPIError, match="clock_readings_are_kept_for_a_month"), database.transaction() as tx:
        tx.connection.exec_driver_sql(delete)
    with database.transaction() as tx:
        tx.connection.exec_driver_sql(f"{delete} WHERE at < '2025-11-03T12:00:00'")
    kept = ClockLog(database).recent(since=NOW - timedelta(days=90))
    assert [one.at for one in kept] == [NOW - timedelta(days=29), NOW]
