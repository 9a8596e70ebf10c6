"""Dagster's own command for projects over this one, as people type it: in the checkout, with no DAGSTER_HOME."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.defs.chain import slug
from kfm_dagster_tests.timeouts import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.clause("DAG-08")
def test_dg_lists_and_checks_every_definition(contracts: ContractRegistry, tmp_path: Path) -> None:
    environment = {**os.environ, "KFM_HOME": str(tmp_path / "home"), "DAGSTER_DISABLE_TELEMETRY": "1"}
    environment.pop("DAGSTER_HOME", None)

    def dg(*arguments: str) -> str:
        command = [str(Path(sys.executable).parent / "dg"), *arguments]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "All definitions loaded successfully" in dg("check", "defs")
    listed = json.loads(dg("list", "defs", "--json"))
    assert {asset["group_name"] for asset in listed["assets"]} == {"queue", *(slug(one.id) for one in contracts)}
    assert {"ingest", "replay", "retention"} <= {job["name"] for job in listed["jobs"]}
    assert {"nodd_messages", "nodd_ledger"} <= {sensor["name"] for sensor in listed["sensors"]}
