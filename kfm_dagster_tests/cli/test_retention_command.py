"""`kfm retention` shows planned and completed deletions; without a policy it deletes nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kfm_dagster.configs import own_folder
from kfm_dagster.errors import ExitCode
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.preflight import hold_roots
from kfm_dagster.retention import RETENTION, RetentionKind
from kfm_dagster.settings import Settings
from kfm_dagster_tests.commands import Call
from kfm_dagster_tests.factories import landed_path, received_long_ago

pytestmark = pytest.mark.clause("BEY-10")

HEAD = 'version: "1.0.0"\nkeep:\n'


@pytest.fixture
def home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """KFM_HOME of a deployment with a landed batch past its retention."""
    configs = home.with_name("configs")
    shutil.copytree(own_folder(), configs)
    monkeypatch.setenv("KFM_CONFIGS_DIR", str(configs))
    pipeline = Pipeline.open(Settings.load())
    hold_roots(pipeline.settings, pipeline.database)
    landed = pipeline.landing.land([])
    received_long_ago(pipeline.database, landed)
    file = Path(pipeline.settings.storage) / landed_path(landed)
    os.utime(file, (0, 0))
    pipeline.close()
    return home


def policy(home: Path, text: str) -> None:
    (home.parent / "configs" / RETENTION).write_text(HEAD + text, encoding="utf-8")


def landed(home: Path) -> list[Path]:
    return list((home / "storage" / "landing").rglob("*.gz"))


def test_the_plan_has_a_row_for_each_kind_of_the_policy(call: Call, home: Path) -> None:
    policy(home, "".join(f"  {kind}: 30d\n" for kind in RetentionKind if kind is not RetentionKind.DAGSTER_RUNS))
    answer = call("retention", "plan", "--json")
    planned = [row["kind"] for row in answer.rows]
    assert (answer.code, sorted([*planned, RetentionKind.DAGSTER_RUNS])) == (ExitCode.DONE, sorted(RetentionKind))


def test_a_plan_changes_nothing_and_a_run_deletes_as_planned(call: Call, home: Path) -> None:
    policy(home, "  landing: 30d\n")
    size = landed(home)[0].stat().st_size
    [planned] = call("retention", "plan", "--json").rows
    assert planned.pop("before")[-1] == "Z"
    expected = {"kind": "landing", "keep_days": 30.0, "older": 1, "needed": 0, "bytes": size}
    assert planned == {**expected, "removable": 1}
    assert landed(home)
    shown = call("retention", "plan")
    assert (shown.code, "landing" in shown.out, "removable" in shown.out) == (ExitCode.DONE, True, True)
    answer = call("retention", "run", "--actor", "jane", "--json")
    [done] = answer.rows
    done.pop("before")
    assert (answer.code, done) == (ExitCode.DONE, {**expected, "removed": 1})
    assert landed(home) == []
    assert [row["removed"] for row in call("retention", "run", "--json").rows] == [0]
    shown = call("retention", "run")
    assert (shown.code, "landing" in shown.out) == (ExitCode.DONE, True)


def test_without_a_policy_nothing_is_deleted_and_the_output_names_the_policy_file(call: Call, home: Path) -> None:
    everything = "everything is kept: no kind has a policy in retention.yaml (docs/retention.md)\n"
    for command in ("plan", "run"):
        assert call("retention", command) == (ExitCode.DONE, everything, "")
        assert call("retention", command, "--json").rows == []
    assert landed(home)


def test_a_missing_ledger_gives_one_error_line_and_is_not_created(call: Call, home: Path) -> None:
    policy(home, "  landing: 30d\n")
    (home / "kfm.db").unlink()
    call("retention", "plan").refused()
    assert not (home / "kfm.db").exists()
