"""Gates as Dagster shows them: what trips one, what follows for units and batch, and that the YAML decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kfm_dagster.defs.gate_checks import NAMES
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.settings import FeedKind
from kfm_dagster.stages.card import StageState
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import DAY, assert_conserved
from kfm_dagster_tests.integration.face import Face, materialisations
from kfm_dagster_tests.integration.gating import announced, gates, under
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.one_database

PARTITION = DAY.isoformat()
JOB = "ingest_nexrad_l2"


def change_contract(face: Face, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    contract = face.pipeline.registry["nexrad-l2"]
    rules = contract.metadata_extract.model_copy(update=changes)
    monkeypatch.setitem(
        face.pipeline.registry.contracts, "nexrad-l2", contract.model_copy(update={"metadata_extract": rules})  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.clause("PCS-09")
def test_every_gate_is_a_blocking_check_that_says_what_it_asks(face: Face) -> None:
    graph = face.repository.asset_graph
    said = {key.name: graph.get_check_spec(key).description for key in graph.asset_check_keys if key.name[0] == "G"}
    assert set(said) == set(NAMES.values())
    assert len(set(said.values())) == len(NAMES)
    assert str(said["G2_citation_compliance"]).startswith("Every extracted field names its source")
    assert all(graph.get_check_spec(key).blocking for key in graph.asset_check_keys if key.name[0] == "G")


@pytest.mark.clause("DAG-11", "PCS-12")
def test_a_feed_that_is_a_sample_is_expected_to_cover_no_day_until_it_is_whole(
    face: Face, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced(face, objects, 2)
    with monkeypatch.context() as patch:
        patch.setattr(face.pipeline, "settings", face.pipeline.settings.model_copy(update={"feed": FeedKind.SAMPLE}))
        result = face.execute(JOB, partition=PARTITION)
        check = gates(result)["ledger", "G6_coverage"]
        assert check.passed
        assert "KFM_FEED" in str(check.metadata["observed"].value)
        assert "tag" not in materialisations(result)["ledger"]
    # What was found of a sample is not handed on where it is none any more; what is handed on hides nothing.
    again = face.execute(JOB, partition=PARTITION)
    whole = face.execute(JOB, partition=PARTITION)
    for each in (again, whole):
        assert not gates(each)["ledger", "G6_coverage"].passed


@pytest.mark.clause("PCS-02", "PCS-13")
def test_a_stop_of_the_batch_fails_its_check_and_nothing_of_the_batch_goes_on(
    face: Face, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced(face, objects, 2)
    change_contract(face, monkeypatch, citations=[])
    result = face.execute(JOB, partition=PARTITION, raise_on_error=False)
    assert not result.success
    check = gates(result)["metadata", "G2_citation_compliance"]
    assert (check.passed, check.severity, check.metadata["tag"].value) == (
        False,
        dg.AssetCheckSeverity.ERROR,
        "[Restricted]",
    )
    assert check.description == "the batch is stopped (S5)"
    assert set(materialisations(result)) == {"envelopes", "integrity"}
    states = {
        one.stage: one.state for one in own_tx(face.pipeline.stages.lifecycle.store).of_run(result.dagster_run.run_id)
    }
    assert states["nexrad-l2.metadata_extract"] is StageState.ROLLED_BACK
    assert "nexrad-l2.stac_register" not in states
    # The run is rolled back: its units wait for another one.
    assert traces.statuses(face.pipeline) == {Status.PENDING: 2}
    assert_conserved(face.pipeline)


@pytest.mark.clause("PCS-06", "PCS-14")
def test_what_the_card_says_decides_whether_a_thin_day_is_restricted_stopped_or_fine(face: Face, objects: Path) -> None:
    announced(face, objects, 1)
    under(face.pipeline, "G6: {on_failure: restrict, min_coverage: 0.9}", "G6: {on_failure: stop, min_coverage: 0.9}")
    stopped = face.execute(JOB, partition=PARTITION, raise_on_error=False)
    assert not stopped.success
    assert gates(stopped)["ledger", "G6_coverage"].severity is dg.AssetCheckSeverity.ERROR
    assert traces.statuses(face.pipeline) == {Status.PENDING: 1}
    under(face.pipeline, "G6: {on_failure: restrict, min_coverage: 0.9}", "G6: {on_failure: stop, min_coverage: 0.0}")
    fine = face.execute(JOB, partition=PARTITION)
    assert gates(fine)["ledger", "G6_coverage"].passed
    assert traces.statuses(face.pipeline) == {Status.SUCCEEDED: 1}
