"""`kfm backfill`: commands that start, show and end a backfill; each records its author."""

from __future__ import annotations

import pytest

from kfm_dagster.cli import backfill as command
from kfm_dagster.errors import ExitCode
from kfm_dagster.ingest.discovery import DayListing
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.recovery.backfill.days import Backfills
from kfm_dagster.recovery.backfill.progress import find_backfill
from kfm_dagster.recovery.replay.runs import ReplayState
from kfm_dagster.settings import Settings
from kfm_dagster_tests.commands import Call
from kfm_dagster_tests.factories import START, bring, envelope

MONTH = ("--from", "2025-12-01", "--to", "2025-12-31")
WHY = ("--reason", "outage", "--actor", "ada")

pytestmark = pytest.mark.usefixtures("ledger")


@pytest.mark.clause("DAG-05", "SEC-02")
def test_one_command_starts_and_logs_a_backfill_of_two_datasets_for_a_month(call: Call) -> None:
    month = ("backfill", "run", "nexrad-l2", "hrrr", *MONTH)
    planned = call(*month, "--dry-run")
    assert planned.out.split()[-4:] == ["nexrad-l2", "2025-12-01", "2025-12-31", "31"]
    assert call("backfill", "status", "--json").rows == []
    assert call(*month).code == ExitCode.USAGE  # without a reason
    started = call(*month, *WHY, "--change-ref", "CHG-1")
    assert started.code == ExitCode.DONE
    [backfill_id] = started.out.split()
    [row] = call("backfill", "status", "--json").rows
    assert (row["backfill_id"], row["state"], row["datasets"]) == (backfill_id, "running", ["hrrr", "nexrad-l2"])
    assert "hrrr nexrad-l2" in call("backfill", "status").out
    assert (row["days"], row["days_listed"], row["actor"], row["change_ref"]) == (62, 0, "ada", "CHG-1")
    assert len(call("backfill", "status", backfill_id, "--json").rows) == 62

    logged = call("governance", "log", "--action", "replay_started", "--json").rows
    assert {entry["dataset"] for entry in logged} == {"hrrr", "nexrad-l2"}
    assert {(entry["actor"], entry["reason"], entry["change_ref"]) for entry in logged} == {("ada", "outage", "CHG-1")}


@pytest.mark.clause("DAG-05")
def test_progress_has_the_ledgers_counts_of_each_day(call: Call) -> None:
    [backfill_id] = call("backfill", "run", "nexrad-l2", *MONTH, *WHY).out.split()
    rows = {row["day"]: row for row in call("backfill", "status", backfill_id, "--json").rows}
    day = rows.pop(START.date().isoformat())
    assert (day["succeeded"], day["failed"], day["pending"], day["state"]) == (1, 1, 1, "waiting")
    assert {row["succeeded"] for row in rows.values()} == {0}
    assert "succeeded" in call("backfill", "status", backfill_id).out


@pytest.mark.clause("OPR-27")
def test_days_before_the_first_day_of_a_dataset_are_reported_as_left_out(call: Call) -> None:
    started = call("backfill", "run", "nexrad-l2", "ocean", "--from", "1991-05-31", "--to", "1991-06-01", *WHY)
    status = call("backfill", "status", started.out.strip(), "--json")
    expected = "left out: 1 day from 1991-05-31 on: nexrad-l2 begins on 1991-06-01\n"
    assert (expected in started.err, status.err) == (True, expected)
    rows = [(row["dataset"], row["left_out"]) for row in status.rows]
    assert rows == [("ocean", {}), ("nexrad-l2", {}), ("ocean", {})]


@pytest.mark.clause("DAG-05")
@pytest.mark.parametrize(
    ("status", "code"), [("succeeded", ExitCode.DONE), ("quarantined", ExitCode.FINISHED_WITH_FAILURES)]
)
def test_status_with_follow_ends_with_the_backfill_and_reports_failures(
    call: Call, monkeypatch: pytest.MonkeyPatch, status: str, code: ExitCode
) -> None:
    [backfill_id] = call("backfill", "run", "hrrr", "--from", "2025-12-03", "--to", "2025-12-03", *WHY).out.split()
    polls: list[float] = []

    def work(seconds: float) -> None:
        """Do the work that a deployment would do between two polls."""
        polls.append(seconds)
        pipeline = Pipeline.open(Settings.load())
        if len(polls) == 1:
            Backfills(pipeline).advance(listing=(), limit=1)
        if len(polls) == 2:
            unit = envelope(dataset="hrrr", object_uri="s3://noaa-hrrr-bdp-pds/hrrr.20251203/conus/x.grib2")
            account = DayListing(clock=pipeline.clock, backfill_id=backfill_id, dataset="hrrr", day="2025-12-03")
            bring(pipeline.ledger, status, [unit])
            with pipeline.database.transaction() as tx:
                assert account.opened(tx)
                assert account.counted(tx, listed=1, created=1, requeued=0)
                account.closed(tx, {})
            Backfills(pipeline).advance(listing=(), limit=1)
            assert find_backfill(pipeline.database, backfill_id).state is ReplayState.FINISHED
        pipeline.close()

    monkeypatch.setattr(command.time, "sleep", work)
    followed = call("backfill", "status", backfill_id, "--follow", "--json")
    assert followed.code == code
    assert polls == [command.POLL_SECONDS] * 2
    assert followed.rows[0]["listed"] == 1
