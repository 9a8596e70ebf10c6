"""Replays in Dagster: the job, the sensor that executes them, the check on differences."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kfm_dagster.exports.validation import validate_report
from kfm_dagster.governance.log import DAGSTER_UI, Decision, GovernanceAction
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.recovery.replay.runs import ReplayState
from kfm_dagster.recovery.replay.selection import API_VERSION, Mode, Options, SpecLimits
from kfm_dagster.recovery.work_orders import approve
from kfm_dagster_tests.databases import every_row
from kfm_dagster_tests.factories import with_section
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import PARTITION, deliver, missing, notify, put, volumes
from kfm_dagster_tests.integration.face import Face, unit_check
from kfm_dagster_tests.recovery.replays import PERSON
from kfm_dagster_tests.recovery.test_replay_selection import volumes_selection
from kfm_dagster_tests.transactions import own_tx

APRIL = {"start": "2025-04-01T00:00:00Z", "end": "2025-05-01T00:00:00Z"}


def selection(status: str, *datasets: str, **spec: Any) -> dict[str, Any]:
    filters = {"datasets": list(datasets), "status": [status], "event_time": APRIL}
    document = {"apiVersion": API_VERSION, "kind": "ReplaySelection", "metadata": {"name": "april", "env": "dev"}}
    return {"selection": {**document, "spec": {"filters": filters, **spec}}}


SCOPE = selection("failed", "nexrad-l2")
WHY = {"reason": "the object is there now", "change_ref": "INC-1"}


def replayed(face: Face, **config: Any) -> dg.ExecuteInProcessResult:
    return face.repository.get_job("replay").execute_in_process(
        run_config={"ops": {"start_replay": {"config": config}}}, instance=face.instance, raise_on_error=False
    )


@pytest.fixture
def retry_backoff_seconds() -> int:
    """An hour, so that only the replay readmits a unit within the test."""
    return 3600


def shown(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    [output] = [event for event in result.all_events if event.event_type is dg.DagsterEventType.STEP_OUTPUT]
    return {name: value.value for name, value in output.step_output_data.metadata.items()}


@pytest.mark.clause("RPL-01", "RPL-04", "RPL-05")
def test_by_default_the_replay_job_is_a_dry_run_otherwise_it_starts_a_replay_that_the_sensor_executes(
    face: Face, objects: Path
) -> None:
    """A unit failed because its object was missing; at the replay the object exists."""
    [item] = volumes(1)
    notify(face.pipeline, item)
    put(objects, [missing(item)])
    face.ingest(partition=PARTITION)
    put(objects, [item])
    before = every_row(face.pipeline.database)
    dry = replayed(face, **SCOPE)
    assert dry.success
    assert (shown(dry)["records"], shown(dry)["batches"]) == (1, 1)
    assert "missing_object" in shown(dry)["breakdown"]
    refused = replayed(face, **selection("failed"))
    assert not refused.success
    [failure] = [event for event in refused.all_events if event.event_type is dg.DagsterEventType.STEP_FAILURE]
    assert "guard scope refused" in str(failure.step_failure_data.error)
    assert not replayed(face).success, "it selects nothing"
    assert not replayed(face, **SCOPE, dry_run=False).success, "it has no reason"
    assert every_row(face.pipeline.database) == before

    started = replayed(face, **SCOPE, **WHY, dry_run=False)
    assert started.success
    replay_run_id = shown(started)["replay_run_id"]
    engine = ReplayEngine(pipeline=face.pipeline)
    # Fields that the configuration omits have the defaults of `kfm replay`: no limit, and no option is set.
    spec = engine.report(replay_run_id).run.selection.spec
    assert (spec.mode, spec.limits, spec.options) == (Mode.FAILED_ONLY, SpecLimits(), Options())
    assert traces.statuses(face.pipeline) == {"failed": 1}
    for _ in range(4):
        for request in face.tick("nodd_ledger").run_requests or []:
            launched = face.launch(request)
            assert launched is None or launched.success
    assert engine.report(replay_run_id).run.state is ReplayState.FINISHED
    assert traces.statuses(face.pipeline) == {"succeeded": 1}
    [record] = traces.records(face.pipeline).values()
    assert record.replay_run_id == replay_run_id
    [entry] = own_tx(face.pipeline.ledger.log).entries(action=GovernanceAction.REPLAY_STARTED)
    assert (entry.actor, entry.details["dagster_run_id"]) == (DAGSTER_UI, started.dagster_run.run_id)
    history = own_tx(face.pipeline.ledger).history(record.wal_id)
    assert [move.actor for move in history if move.reason == "incident"] == [DAGSTER_UI]
    # The audit line in which the run names its replay does not count as a second replay.
    report = validate_report(face.pipeline, since=face.pipeline.clock() - timedelta(days=1))
    assert (report["replays"], report["kpis"]["replay_count"]) == ({"count": 1, "stages": 0}, 1)


@pytest.mark.clause("SEC-10")
def test_the_job_takes_no_actor_from_configuration_or_tags_and_a_person_must_approve(face: Face) -> None:
    [item] = volumes(1)
    deliver(face.pipeline, item)
    face.ingest(partition=PARTITION)
    options = {"allow_repair_and_replace": True}
    repair = {**selection("succeeded", "nexrad-l2", mode="repair-and-replace", options=options), **WHY}
    with pytest.raises(dg.DagsterInvalidConfigError):
        replayed(face, **repair, actor="jane", dry_run=False)

    proposed = face.repository.get_job("replay").execute_in_process(
        run_config={"ops": {"start_replay": {"config": {**repair, "dry_run": False}}}},
        instance=face.instance,
        tags={"actor": "jane", "kfm/actor": "jane"},
    )
    number = shown(proposed)["proposal_id"]
    engine, ledger = ReplayEngine(pipeline=face.pipeline), face.pipeline.ledger
    assert (engine.newest(), traces.statuses(face.pipeline)) == ([], {"succeeded": 1})
    [proposal] = own_tx(ledger.review).waiting()
    assert (proposal.proposal_id, proposal.decision.actor) == (number, DAGSTER_UI)
    assert proposal.decision.dagster_run_id == proposed.dagster_run.run_id

    approve(ReplayEngine(pipeline=face.pipeline), number, Decision(actor="bob", reason="seen", change_ref="INC-1"))
    engine.advance_all()
    assert traces.statuses(face.pipeline) == {"pending": 1}
    [entry] = own_tx(ledger.log).entries(action=GovernanceAction.REPAIR_AND_REPLACE)
    assert (entry.actor, entry.approved_by) == (DAGSTER_UI, "bob")


def test_a_differing_result_of_a_replay_fails_the_run_s_check_which_names_the_unit(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    [item] = volumes(1)
    deliver(face.pipeline, item)
    first = face.ingest(partition=PARTITION)
    assert unit_check(first).passed
    engine = ReplayEngine(pipeline=face.pipeline)
    engine.start(volumes_selection("succeeded", mode="repair-and-replace", must_match=True), PERSON)
    assert [step.admitted is not None for step in engine.advance_all()] == [True]
    contract = face.pipeline.registry["nexrad-l2"]
    titled = with_section(contract, "stac", data_asset=contract.stac.data_asset.model_copy(update={"title": "Volume"}))
    monkeypatch.setitem(face.pipeline.registry.contracts, "nexrad-l2", titled)
    second = face.ingest(partition=PARTITION)
    check = unit_check(second)
    [record] = traces.records(face.pipeline).values()
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert check.metadata["mismatched_units"].value == [record.wal_id]
    assert "1 of 1 unit of this run gave another result than before" in str(check.description)
