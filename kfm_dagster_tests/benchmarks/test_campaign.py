"""SIGKILLs at random failpoints and crashes of PostgreSQL during the ingest of many units."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.campaign import CampaignReport, run_campaign
from benchmarks.postgres import RestartablePostgres
from benchmarks.strikes import strikes_on
from kfm_dagster_tests.timeouts import HANG_SECONDS

Figure = Callable[[str], None]

UNITS, KILLS = 300, 8
"""A sample of `make soak`, which has 10,000 units and 200 deaths on each database."""

CLAUSES = pytest.mark.clause("BEY-02", "BEY-03", "BEY-09", "WAL-04", "WAL-05", "WSM-11")


@pytest.mark.deployment
@CLAUSES
@pytest.mark.clause("BEY-16")
@pytest.mark.timeout(HANG_SECONDS + 60)
def test_on_sqlite_killed_processes_beside_a_resident_worker_lose_and_double_no_unit(
    tmp_path: Path, figure: Figure
) -> None:
    report = run_campaign(
        tmp_path / "home",
        database_url=f"sqlite:///{tmp_path / 'kfm.db'}",
        units=UNITS,
        kills=KILLS,
        timeout_seconds=HANG_SECONDS,
        with_worker=True,
    )
    figure(_line(report))
    assert (report.kills, report.units) == (KILLS, UNITS)
    assert report.samples > 0


@pytest.mark.deployment
@CLAUSES
@pytest.mark.timeout(HANG_SECONDS + 60)
def test_on_postgresql_killed_processes_and_failures_of_the_server_lose_and_double_no_unit(
    tmp_path: Path, figure: Figure
) -> None:
    # Not below pytest's folder, which is private: on some machines the server runs as another user.
    with tempfile.TemporaryDirectory(prefix="kfm-campaign-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        with RestartablePostgres(Path(folder) / "data") as server:
            report = run_campaign(
                tmp_path / "home",
                database_url=server.url,
                units=UNITS,
                kills=KILLS,
                timeout_seconds=HANG_SECONDS,
                strikes=strikes_on(server),
            )
    figure(_line(report))
    assert (report.kills, report.units) == (KILLS, UNITS)
    assert report.strikes == {"crash_and_restart": 1, "end_backends": 1, "exhaust_connections": 1}
    assert report.samples > 0


def _line(report: CampaignReport) -> str:
    strikes = ", ".join(report.strikes) or "none"
    return (
        f"chaos on {report.database}: {report.kills} SIGKILLs over {report.units} units in {report.seconds:.0f} s, "
        f"strikes on the server: {strikes}; {report.samples} balances, all even; "
        f"at most {report.most_attempts} attempts"
    )
