"""The public SQL views: every column is documented, and a run's row has the run's results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import sqlalchemy as sa

from kfm_dagster.storage.database import Database
from kfm_dagster_tests.databases import unguarded
from kfm_dagster_tests.integration.chain import DAY, good, open_pipeline, put, run_chain, volumes

DOCUMENT = Path(__file__).parents[2] / "docs" / "sql-views.md"
AT = "2025-12-03T00:00:00.000000Z"
RUN = "11111111-1111-4111-8111-111111111111"
VIEWS = ("kfm_units", "kfm_runs", "kfm_gaps")


@pytest.mark.parametrize("view", VIEWS)
def test_the_documented_columns_are_the_columns_of_the_view_in_order(database: Database, view: str) -> None:
    section = DOCUMENT.read_text(encoding="utf-8").split(f"\n## {view}\n")[1].split("\n## ")[0]
    documented = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert documented == [column["name"] for column in sa.inspect(database.engine).get_columns(view)]


def test_the_row_of_a_run_has_the_results_of_its_stages(database_url: str, tmp_path: Path) -> None:
    pipeline = open_pipeline(tmp_path / "home", tmp_path / "objects", url=database_url)
    intact, broken = volumes(2)
    put(tmp_path / "objects", [intact, good(broken.bucket, broken.key, b"no volume")])
    run_chain(pipeline, "nexrad-l2", DAY.isoformat(), RUN)
    with pipeline.database.snapshot() as tx:
        [row] = tx.connection.exec_driver_sql("SELECT * FROM kfm_runs").mappings()
        states = tx.connection.exec_driver_sql("SELECT min(opened_at), max(ended_at) FROM stage_state").one()
    assert {name: value for name, value in row.items() if not name.endswith("_at")} == {
        "run_id": RUN,
        "dataset": "nexrad-l2",
        "state": "succeeded",
        "stages": 6,
        "failed_stage": None,
        "error_class": None,
        "units_claimed": 2,
        "units_succeeded": 1,
        "units_retrying": 1,
        "units_quarantined": 0,
        "units_lost": 0,
    }
    assert (row["started_at"], row["ended_at"]) == tuple(states)
    pipeline.close()


def test_the_state_of_a_run_follows_from_the_last_attempt_of_each_stage(database: Database) -> None:
    attempted: list[tuple[list[str], tuple[str, str | None, str | None]]] = [
        (["running"], ("running", None, None)),
        (["failed"], ("failed", "nexrad-l2.settle", "E_INTERNAL")),
        (["rolled_back"], ("rolled_back", "nexrad-l2.settle", "E_INTERNAL")),
        (["failed", "succeeded"], ("succeeded", None, None)),
        (["failed", "running"], ("running", None, None)),
    ]
    insert = sa.text(
        "INSERT INTO stage_state (run_id, stage, attempt, state, idempotency_key, input_hashes, opened_at, "
        "started_at, ended_at, error_class, compensation) "
        "VALUES (:run, 'nexrad-l2.settle', :number, :state, :key, '[]', :at, :at, :ended, :error, '{}')"
    )
    shown = sa.text("SELECT state, failed_stage, error_class, ended_at FROM kfm_runs WHERE run_id = :run")
    for attempts, expected in attempted:
        run = "+".join(attempts)
        with database.engine.begin() as connection, unguarded(connection, "stage_state"):
            for number, state in enumerate(attempts, start=1):
                row = {"run": run, "number": number, "state": state, "key": "0" * 64, "at": AT}
                row["ended"] = None if state == "running" else AT
                row["error"] = "E_INTERNAL" if state in {"failed", "rolled_back"} else None
                connection.execute(insert, row)
            row_of_run = connection.execute(shown, {"run": run}).one()
        assert tuple(row_of_run[:3]) == expected, run
        assert (row_of_run.ended_at is None) == (expected[0] == "running")
