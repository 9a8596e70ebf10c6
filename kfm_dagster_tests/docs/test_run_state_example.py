"""The example of run-state runs as its first lines say, in whatever store and branch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kfm_dagster_tests.timeouts import HANG_SECONDS

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "run_state" / "lengths.py"


@pytest.mark.clause("RSP-03")
@pytest.mark.parametrize("store", ["", "records"], ids=["database", "objects"])
def test_the_function_runs_again_only_where_something_changed(tmp_path: Path, store: str) -> None:
    def run(run_id: str = "run-1", branch: str = "main") -> str:
        variables = {"KFM_HOME": "home", "KFM_RUN_STATE": store, "KFM_LAKEFS_BRANCH": branch}
        return subprocess.run(
            [sys.executable, EXAMPLE, run_id, "out.json", "a", "b"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables},
            check=True,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
        ).stdout

    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "b").write_bytes(b"de")
    assert run() == "executed: success\n"
    assert run().startswith("skipped: ")
    assert run("run-2") == "executed: success\n"
    (tmp_path / "b").write_bytes(b"")
    assert [run(), run()] == ["executed: partial\n"] * 2
    if store:
        (tmp_path / "b").write_bytes(b"de")
        # A branch has records of its own, and those of the other stay.
        assert run("run-2", "release").startswith("executed")
        assert run("run-2").startswith("skipped")
