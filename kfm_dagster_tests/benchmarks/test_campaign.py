"""SIGKILLs by the dozen at random failpoints, and restarts of PostgreSQL, while hundreds of units are ingested."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.campaign import CampaignReport, run_campaign
from kfm_dagster.deployment.postgres import RestartablePostgres
from kfm_dagster_tests.timeouts import HANG_SECONDS

Figure = Callable[[str], None]

UNITS, KILLS, RESTARTS = 300, 8, 1
"""A sample of `make soak`, which has 10,000 units and 200 deaths on each database."""

CLAUSES = pytest.mark.clause("BEY-02", "BEY-03", "BEY-09", "WAL-04", "WAL-05", "WSM-11")


@pytest.mark.deployment
@CLAUSES
@pytest.mark.timeout(HANG_SECONDS + 60)
def test_killed_processes_lose_and_double_nothing_on_sqlite(tmp_path: Path, figure: Figure) -> None:
    report = run_campaign(
        tmp_path / "home",
        database_url=f"sqlite:///{tmp_path / 'kfm.db'}",
        units=UNITS,
        kills=KILLS,
        timeout_seconds=HANG_SECONDS,
    )
    figure(_line(report))
    assert (report.kills, report.units) == (KILLS, UNITS)
    assert report.samples > 0


@pytest.mark.deployment
@CLAUSES
@pytest.mark.timeout(HANG_SECONDS + 60)
def test_killed_processes_and_a_crashing_server_lose_and_double_nothing_on_postgresql(
    tmp_path: Path, figure: Figure
) -> None:
    # Not below pytest's folder: the server may run as a user of its own.
    with tempfile.TemporaryDirectory(prefix="kfm-campaign-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        with RestartablePostgres(Path(folder) / "data") as server:
            report = run_campaign(
                tmp_path / "home",
                database_url=server.url,
                units=UNITS,
                kills=KILLS,
                timeout_seconds=HANG_SECONDS,
                restart_database=server.crash_and_restart,
                restarts=RESTARTS,
            )
    figure(_line(report))
    assert (report.kills, report.units, report.database_restarts) == (KILLS, UNITS, RESTARTS)
    assert report.samples > 0


def _line(report: CampaignReport) -> str:
    return (
        f"chaos on {report.database}: {report.kills} SIGKILLs and {report.database_restarts} database restarts over "
        f"{report.units} units in {report.seconds:.0f} s; {report.samples} balances, all even; at most "
        f"{report.most_attempts} attempts"
    )
