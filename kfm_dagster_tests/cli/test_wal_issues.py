"""`kfm units show` prints the reasons for which a unit is suspect."""

from __future__ import annotations

from datetime import UTC, datetime, time
from pathlib import Path

import pytest

from kfm_dagster.demo.samples.hrrr import BUCKET, make_hrrr
from kfm_dagster.errors import ExitCode
from kfm_dagster_tests.commands import Call, state_of
from kfm_dagster_tests.integration import chain, traces

DAY = chain.DAY.isoformat()


@pytest.fixture
def units(home: Path, tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Ingest two objects, one without its index; return the units' wal_ids by metadata status."""
    for lead in (6, 7):
        key, content, index = make_hrrr(run=datetime.combine(chain.DAY, time(6), UTC), lead=lead)
        objects = [chain.good(BUCKET, key, content), chain.good(BUCKET, f"{key}.idx", index.encode())]
        chain.put(tmp_path / "objects", objects if lead == 6 else objects[:1])
    pipeline = chain.open_pipeline(home, tmp_path / "objects", url=database_url)
    chain.run_chain(pipeline, "hrrr", DAY, "11111111-0000-4000-8000-000000000001")
    by_status = {record.metadata_status.value: record.wal_id for record in traces.records(pipeline).values()}
    pipeline.close()
    monkeypatch.setenv("KFM_WAL_DSN", database_url)
    return by_status


ISSUE = {"operator": "metadata_extract", "code": "sidecar_missing", "severity": "suspect"}


def test_wal_show_prints_why_a_unit_is_suspect_and_changes_nothing(
    call: Call, units: dict[str, str], tmp_path: Path
) -> None:
    before = state_of(tmp_path)
    [sound], [suspect] = (call("wal", "show", units[status], "--json").rows for status in ("ok", "suspect"))
    assert sound["issues"] == []
    [issue] = suspect["issues"]  # type: ignore[misc]
    assert {name: issue[name] for name in ISSUE} == ISSUE
    assert issue["message"]
    assert "issues: none" in call("wal", "show", units["ok"]).out
    assert "sidecar_missing" in call("wal", "show", units["suspect"]).out
    assert state_of(tmp_path) == before


def test_a_unit_with_a_lost_output_is_still_shown(call: Call, units: dict[str, str], home: Path) -> None:
    for file in (home / "storage").rglob("*.parquet"):
        file.unlink()
    answer = call("wal", "show", units["suspect"], "--json")
    assert (answer.code, answer.err) == (ExitCode.DONE, "")
    [issue] = answer.rows[0]["issues"]  # type: ignore[misc]
    assert (issue["operator"], issue["code"]) == ("settle", None)
    assert "cannot be read" in issue["message"]
