"""`kfm clock` shows, judges and records readings of the clock; its exit code is 4 if the clock is wrong."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kfm_dagster.cli.main import main
from kfm_dagster.errors import ExitCode
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database
from kfm_dagster.telemetry.clock import sources
from kfm_dagster.telemetry.clock.reading import ClockLog, ClockReading
from kfm_dagster.telemetry.clock.sources import NtpState
from kfm_dagster_tests.clocks import server_reading
from kfm_dagster_tests.commands import caller

Call = Callable[..., tuple[int, str]]


@pytest.fixture
def database(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    opened = Database.open(Settings.load().database_url)
    yield opened
    opened.dispose()


@pytest.fixture
def call(database: Database, capsys: pytest.CaptureFixture[str]) -> Call:
    run = caller(capsys, "clock")
    return lambda *arguments: run(*arguments)[:2]


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

    code, out = call("--json")

    printed = json.loads(out)
    assert (code, printed["state"], printed["kernel"]) == (ExitCode.DONE, "locked", "unlocked")
    [source] = printed["sources"]
    assert (source["source"], source["readings"], source["delta_t_abs"]) == ("date:s3.example", 3, 0.2)
    hour = next(row for row in printed["stability"] if row["tau_seconds"] == 3600)
    assert (hour["sigma_y"], hour["terms"]) == (pytest.approx(0.0), 1)
    shown = call()[1]
    assert "date:s3.example" in shown
    assert "within 1 s" in shown


@pytest.mark.clause("PCS-10")
def test_with_a_wrong_clock_the_exit_code_is_4(database: Database, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    set_kernel(monkeypatch, KEPT)
    assert call()[0] == ExitCode.DONE
    ClockLog(database).record([server(5.0, hours=1)])
    code, out = call("--json")
    assert (code, json.loads(out)["state"]) == (ExitCode.FINISHED_WITH_FAILURES, "unlocked")


def test_only_the_option_ask_records_readings(
    database: Database, call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    set_kernel(monkeypatch, KEPT)
    monkeypatch.setenv("KFM_OBJECT_ROOT", str(tmp_path))  # a folder instead of an object store has no clock to query
    long_ago = datetime.now(UTC) - timedelta(days=1)
    call()
    assert ClockLog(database).recent(since=long_ago) == ()
    assert call("--ask")[0] == ExitCode.DONE
    [recorded] = ClockLog(database).recent(since=long_ago)
    assert (recorded.source, recorded.offset_seconds) == ("kernel", 0.0001)


def test_an_object_store_whose_clock_cannot_be_queried_is_named(
    database: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_kernel(monkeypatch, KEPT)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(SystemExit) as ended:
        main(["clock", "--ask", "--json"])
    captured = capsys.readouterr()
    assert (ended.value.code, json.loads(captured.out)["kernel"]) == (ExitCode.DONE, "locked")
    assert captured.err.startswith("kfm: http://127.0.0.1:1")
    assert "did not answer; the state is from the kernel and earlier readings" in captured.err
