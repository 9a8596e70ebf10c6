"""The schedule `nodd_retention` and its job, in Dagster: nothing without a policy, else what the command does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kfm_dagster.governance.log import GovernanceAction
from kfm_dagster.retention.policy import RETENTION
from kfm_dagster_tests.factories import received_long_ago
from kfm_dagster_tests.integration.face import Face
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.clause("BEY-10")


@pytest.fixture
def policy(face: Face, tmp_path: Path) -> Path:
    """The file of the deployment, which is not there yet."""
    folder = tmp_path / "configs"
    folder.mkdir()
    face.pipeline.settings = face.pipeline.settings.model_copy(update={"configs_dir": folder})
    return folder / RETENTION


def test_the_schedule_asks_for_the_job_once_there_is_a_policy_and_the_job_removes(
    face: Face, tmp_path: Path, policy: Path
) -> None:
    # A schedule finds its instance by reference, which one in memory has not.
    instance = dg.DagsterInstance.local_temp(str(tmp_path))
    pipeline = face.pipeline
    landed = pipeline.landing.land([])
    received_long_ago(pipeline.database, landed)
    file = Path(pipeline.settings.storage) / landed.uri
    os.utime(file, (0, 0))

    def tick() -> Any:
        with dg.build_schedule_context(instance=instance, repository_def=face.repository) as context:
            return face.repository.get_schedule_def("nodd_retention").evaluate_tick(context)

    asked = tick()
    assert (asked.run_requests, asked.skip_message) == (
        [],
        "everything is kept: no kind has a policy in retention.yaml",
    )
    policy.write_text('version: "1.0.0"\nkeep: {dagster_runs: 1d, landing: 30d}\n', encoding="utf-8")
    assert len(tick().run_requests) == 1

    job = face.repository.get_job("retention")
    done = job.execute_in_process(instance=instance).output_for_node("remove_what_is_old")
    assert done["landing"] == {"older": 1, "removed": 1, "bytes": done["landing"]["bytes"]}
    assert done["dagster_runs"] == {"older": 0, "removed": 0, "bytes": 0}
    assert not file.exists()
    [entry] = own_tx(pipeline.ledger.log).entries(action=GovernanceAction.RETENTION)
    assert (entry.actor, entry.details["kind"]) == ("nodd_retention", "landing")


@pytest.mark.one_database
def test_a_policy_that_is_wrong_fails_the_job_in_one_line_and_removes_nothing(face: Face, policy: Path) -> None:
    policy.write_text('version: "1.0.0"\nkeep: {landing: 1d}\n', encoding="utf-8")
    file = Path(face.pipeline.settings.storage) / face.pipeline.landing.land([]).uri
    os.utime(file, (0, 0))
    with pytest.raises(dg.Failure, match=r"retention.yaml line 2: keep.landing is wrong; .* 15d at least"):
        face.repository.get_job("retention").execute_in_process(instance=face.instance)
    assert file.exists()
