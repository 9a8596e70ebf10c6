"""`kfm clock` shows, judges and records readings of the clock; its exit code is 4 if the clock is wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kfm_dagster.errors import ExitCode
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database
from kfm_dagster.telemetry.clock import sources
from kfm_dagster.telemetry.clock.reading import ClockLog, ClockReading
from kfm_dagster.telemetry.clock.sources import NtpState
from kfm_dagster_tests.clocks import server_reading
from kfm_dagster_tests.commands import Call


@pytest.fixture
def database(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    opened = Database.open(Settings.load().database_url)
    yield opened
    opened.dispose()


def server(offset: float, *, hours: float) -> ClockReading:
    return server_reading(datetime.now(UTC) - timedelta(hours=hours), offset, 0.55, host="s3.example")


def set_kernel(monkeypatch: pytest.MonkeyPatch, reading: tuple[int, NtpState]) -> None:
    monkeypatch.setattr(sources.kernel_clock, "__kwdefaults__", {"ask": lambda: reading})


LOOSE = (5, NtpState(status=0x40, offset=0, maxerror=16_000_000))
KEPT = (0, NtpState(status=0x1, offset=100, maxerror=20_000))


@pytest.mark.clause("PCS-10", "PCS-17")
def test_recorded_readings_are_printed_and_judged(
    database: Database, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_kernel(monkeypatch, LOOSE)
    ClockLog(database).record([server(0.2, hours=hours) for hours in (3, 2, 1)])

    answer = call("clock", "--json")

    printed = answer.document
    assert (answer.code, printed["state"], printed["kernel"]) == (ExitCode.DONE, "locked", "unlocked")
    [source] = printed["sources"]
    assert (source["source"], source["readings"], source["delta_t_abs"]) == ("date:s3.example", 3, 0.2)
    hour = next(row for row in printed["stability"] if row["tau_seconds"] == 3600)
    assert (hour["sigma_y"], hour["terms"]) == (pytest.approx(0.0), 1)
    shown = call("clock").out
    assert "date:s3.example" in shown
    assert "within 1 s" in shown


@pytest.mark.clause("PCS-10")
def test_with_a_wrong_clock_the_exit_code_is_4(database: Database, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    set_kernel(monkeypatch, KEPT)
    assert call("clock").code == ExitCode.DONE
    ClockLog(database).record([server(5.0, hours=1)])
    answer = call("clock", "--json")
    assert (answer.code, answer.document["state"]) == (ExitCode.FINISHED_WITH_FAILURES, "unlocked")


def test_only_the_option_ask_records_readings(
    database: Database, call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    set_kernel(monkeypatch, KEPT)
    monkeypatch.setenv("KFM_OBJECT_ROOT", str(tmp_path))  # a folder instead of an object store has no clock to query
    long_ago = datetime.now(UTC) - timedelta(days=1)
    call("clock")
    assert ClockLog(database).recent(since=long_ago) == ()
    assert call("clock", "--ask").code == ExitCode.DONE
    [recorded] = ClockLog(database).recent(since=long_ago)
    assert (recorded.source, recorded.offset_seconds) == ("kernel", 0.0001)


def test_an_object_store_whose_clock_cannot_be_queried_is_named(
    database: Database, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_kernel(monkeypatch, KEPT)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    answer = call("clock", "--ask", "--json")
    assert (answer.code, answer.document["kernel"]) == (ExitCode.DONE, "locked")
    assert answer.err.startswith("kfm: http://127.0.0.1:1")
    assert "did not answer; the state is from the kernel and earlier readings" in answer.err
