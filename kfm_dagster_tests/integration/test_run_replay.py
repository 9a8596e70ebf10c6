"""Replaying a run by replay_plan.yaml, stage by stage; and resolving intents of failed runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import dagster as dg
import pytest

from kfm_dagster.contracts.envelope import CheckStatus
from kfm_dagster.contracts.issues import IntegrityIssue, Issue, Severity
from kfm_dagster.defs.chain import asset_keys
from kfm_dagster.defs.jobs import INGEST_JOB, PATH_JOB
from kfm_dagster.errors import ConfigurationError, ExitCode
from kfm_dagster.exports.validation import validate_report
from kfm_dagster.governance.log import DAGSTER_UI, Decision, GovernanceAction
from kfm_dagster.idempotent_node.wal import IntentStatus
from kfm_dagster.ingest import nodes, path_arrivals
from kfm_dagster.ingest.discovery import MessageParse
from kfm_dagster.ingest.nodes import IntegrityCheck, chain, operators
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.run_replay import ReplayedParse, RunReplayRefusedError, compare_run
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.recovery.work_orders import approve
from kfm_dagster.settings import Environment
from kfm_dagster.stages.card import ErrorClass, StageState, Verify
from kfm_dagster.stages.failure import StageFailedError
from kfm_dagster_tests.catalog import trees
from kfm_dagster_tests.commands import Call
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import (
    PARTITION,
    deliver,
    node,
    put,
    run_pending,
    step,
    steps,
    truncated,
    volumes,
)
from kfm_dagster_tests.integration.face import Face
from kfm_dagster_tests.integration.gating import alter_metadata, under
from kfm_dagster_tests.transactions import own_tx

STAGES = ["nexrad-l2.stac_register", "nexrad-l2.metadata_extract", "nexrad-l2.integrity_check"]
PERSON = Decision(actor="ada", reason="drill", change_ref="CHG-7")


def ingested(pipeline: Pipeline) -> None:
    """Ingest four units: three succeed, and a truncated one waits for its next attempt."""
    items = [*volumes(3), truncated(volumes(4)[3])]
    deliver(pipeline, *items)
    run_pending(pipeline, "original")


def replayed(pipeline: Pipeline, run_id: str = "replay", original: str = "original") -> None:
    first = step(pipeline, node(pipeline, ReplayedParse, run_id, original=original, decision=PERSON))
    steps(pipeline, run_id, chain()[1:], first)


def stored_state(pipeline: Pipeline) -> Any:
    return trees.files(Path(pipeline.settings.catalog)), traces.records(pipeline), traces.statuses(pipeline)


def lines(pipeline: Pipeline, kind: str) -> list[tuple[str, str, dict[str, Any]]]:
    return [(line["run_id"], line["event"], line["details"]) for line in traces.audited(pipeline, kind)]


@pytest.mark.clause("PCS-08", "PCS-15", "PCS-16", "PCS-17")
def test_a_replay_rolls_back_the_original_passes_every_gate_and_gives_equal_outputs(pipeline: Pipeline) -> None:
    ingested(pipeline)
    before = trees.walk(Path(pipeline.settings.catalog))
    links = {wal_id: pipeline.lineage.links_of(wal_id) for wal_id in traces.records(pipeline)}
    replayed(pipeline)
    after = trees.walk(Path(pipeline.settings.catalog))
    assert {name: without_run(document) for name, document in after.items()} == {
        name: without_run(document) for name, document in before.items()
    }
    runs = {doc["properties"]["kfm:run_state"]["run_id"] for doc in after.values() if doc["type"] == "Feature"}
    assert runs == {"replay"}, "the Items are the replay's; the original's were rolled back first"
    assert {wal_id: pipeline.lineage.links_of(wal_id) for wal_id in links} == links
    records = traces.records(pipeline).values()
    assert sorted((record.status, record.attempts, record.ingest_run_id) for record in records) == [
        (Status.FAILED, 1, "original"),
        *[(Status.SUCCEEDED, 2, "replay")] * 3,
    ]
    assert pipeline.ledger.mismatches() == []
    attempts = own_tx(pipeline.stages.lifecycle.store).of_run("replay")
    assert [attempt.state for attempt in attempts] == [StageState.SUCCEEDED] * len(operators())
    passed = {event for run_id, event, details in lines(pipeline, "gate") if run_id == "replay"}
    # G6 expects nothing of a product that this run is the first to ingest.
    assert {"G1", "G2", "G4", "G8"} <= passed
    compared = lines(pipeline, "replay")
    report = validate_report(pipeline, since=pipeline.clock() - timedelta(days=1))
    assert (report["replays"], report["kpis"]["replay_count"]) == ({"count": 1, "stages": len(compared)}, 1)
    assert [(run, event, details["stage"]) for run, event, details in compared] == [
        ("replay", "compared", stage) for stage in STAGES
    ]
    assert all(details["original_sha256"] == details["replayed_sha256"] for _, _, details in compared)
    decided = {"actor": "ada", "change_ref": "CHG-7", "units": 3}
    assert lines(pipeline, "override") == [("replay", GovernanceAction.REPEAT.value, decided)]
    [undone] = lines(pipeline, "compensation")
    assert undone == ("original", "done", {"because": "replay", "restored": 0, "removed": 3, "superseded": 0})
    log = own_tx(pipeline.ledger.log).entries(action=GovernanceAction.REPEAT)
    assert {(entry.actor, entry.change_ref) for entry in log} == {("ada", "CHG-7")}
    # The replay can be replayed again, but not the original, which was rolled back.
    replayed(pipeline, run_id="third", original="replay")
    with pytest.raises(RunReplayRefusedError, match="stac_register has no output in run original"):
        list(compare_run(pipeline, dataset="nexrad-l2", run_id="original"))


def without_run(document: dict[str, Any]) -> dict[str, Any]:
    properties = {name: value for name, value in document.get("properties", {}).items() if name != "kfm:run_state"}
    # A Collection has its run as a top-level field, an Item among its properties.
    return {name: value for name, value in document.items() if name != "kfm:run_state"} | {"properties": properties}


@pytest.mark.clause("WSM-21")
def test_in_prod_the_replay_of_a_run_waits_for_a_second_person(pipeline: Pipeline) -> None:
    ingested(pipeline)
    pipeline.settings = pipeline.settings.model_copy(update={"env": Environment.PROD})
    before = stored_state(pipeline)
    for run_id in ("first", "again"):  # a second start refers to the same proposal
        with pytest.raises(StageFailedError, match=r"waits for a second person; observed proposal (\d+), of 3 units"):
            replayed(pipeline, run_id)
    assert stored_state(pipeline) == before
    [proposal] = own_tx(pipeline.ledger.review).waiting()
    bob = Decision(actor="bob", reason="it compared equal", change_ref="CHG-7")
    approve(ReplayEngine(pipeline=pipeline), proposal.proposal_id, bob)
    assert stored_state(pipeline) == before, "only the run readmits its units"
    replayed(pipeline, "approved")
    entries = own_tx(pipeline.ledger.log).entries(action=GovernanceAction.REPEAT)
    assert [(entry.actor, entry.approved_by) for entry in entries] == [("ada", "bob")] * 3


@pytest.mark.clause("PCS-08", "PCS-15")
def test_a_diverging_replay_is_rolled_back_reported_and_changes_nothing(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingested(pipeline)
    chosen = own_tx(pipeline.ledger).find(status=Status.SUCCEEDED, limit=1)[0].wal_id
    alter_metadata(monkeypatch, lambda unit: unit.wal_id == chosen, **{"nexrad:vcp": 11})
    before = stored_state(pipeline)
    with pytest.raises(
        StageFailedError, match=f"metadata_extract of run original.* 1 with another result; the first is {chosen}"
    ):
        replayed(pipeline)
    assert stored_state(pipeline) == before
    attempt = own_tx(pipeline.stages.lifecycle.store).newest("replay", "nexrad-l2.message_parse")
    assert attempt.state is StageState.ROLLED_BACK
    [reported] = [details for _, event, details in lines(pipeline, "replay") if event == "diverged"]
    assert (reported["stage"], reported["results_differing"], reported["keys_differing"]) == (
        "nexrad-l2.metadata_extract",
        1,
        0,
    )
    assert reported["first"] == chosen
    assert reported["original_sha256"] != reported["replayed_sha256"]


@pytest.mark.clause("PCS-08")
def test_a_comparison_reports_a_changed_object_by_its_result_and_a_unit_without_item_by_its_key(
    pipeline: Pipeline, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingested(pipeline)
    put(objects, [truncated(volumes(1)[0])])
    first = own_tx(pipeline.ledger).find(status=Status.SUCCEEDED, limit=1)[0].wal_id
    register = nodes.may_register
    monkeypatch.setattr(nodes, "may_register", lambda unit: unit.wal_id != first and register(unit))
    compared = {stage.stage: stage for stage in compare_run(pipeline, dataset="nexrad-l2", run_id="original")}
    assert list(compared) == STAGES
    integrity, items = compared["nexrad-l2.integrity_check"], compared["nexrad-l2.stac_register"]
    assert (len(integrity.keys_differing), len(integrity.results_differing)) == (0, 1)
    assert (items.keys_differing, items.results_differing) == ((first,), ())
    plan = pipeline.card.replay_plan.replay
    assert items.diverges(plan)
    assert not items.diverges(plan.model_copy(update={"verify": Verify(hash=True, primary_keys=False)}))


@pytest.mark.clause("PCS-08")
def test_an_unreachable_store_is_not_a_divergence(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    ingested(pipeline)
    silent = Issue(code=IntegrityIssue.STORAGE_UNAVAILABLE.value, severity=Severity.FAILED, message="403")
    plain = nodes.integrity_check

    def refused(unit: Any, **parts: Any) -> Any:
        return replace(plain(unit, **parts), status=CheckStatus.FAILED, issues=(silent,))

    monkeypatch.setattr(nodes, "integrity_check", refused)
    with pytest.raises(StageFailedError, match="cannot be read now") as failed:
        replayed(pipeline)
    assert failed.value.error_class is ErrorClass.E_INTERNAL, "an internal error is retried"
    assert [event for _, event, _ in lines(pipeline, "replay")] == []


@pytest.mark.clause("PCS-08", "PCS-14")
def test_the_options_of_the_plan_are_applied(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    ingested(pipeline)
    shipped = pipeline.card

    under(pipeline, "enabled: true", "enabled: false")
    with pytest.raises(StageFailedError, match=r"replay\.enabled false"):
        replayed(pipeline, "disabled")

    under(pipeline, "compensate_before_replay: true", "compensate_before_replay: false")
    replayed(pipeline, "gently")
    features = [doc for doc in trees.walk(Path(pipeline.settings.catalog)).values() if doc["type"] == "Feature"]
    assert {doc["properties"]["kfm:run_state"]["run_id"] for doc in features} == {"original"}, "nothing was rolled back"
    assert [run for run, _, _ in lines(pipeline, "compensation")] == ["disabled"]

    chosen = own_tx(pipeline.ledger).find(status=Status.SUCCEEDED, limit=1)[0].wal_id
    alter_metadata(monkeypatch, lambda unit: unit.wal_id == chosen, **{"nexrad:vcp": 11})
    pipeline.card = shipped
    with pytest.raises(StageFailedError, match="gives another result now"):
        replayed(pipeline, "strict", original="gently")
    under(pipeline, "verify: {hash: true, primary_keys: true}", "verify: {hash: false, primary_keys: true}")
    replayed(pipeline, "lenient", original="gently")
    assert len(pipeline.ledger.mismatches()) == 1, (
        "a difference that was not compared beforehand is detected at settlement"
    )


@pytest.mark.clause("PCS-08", "PCS-14")
def test_a_run_without_checkpoints_is_replayed_only_if_the_plan_allows_it(
    make_pipeline: Callable[..., Pipeline],
) -> None:
    pipeline = make_pipeline()
    under(pipeline, "checkpoints: [message_parse, integrity_check,", "checkpoints: [message_parse,")
    ingested(pipeline)
    with pytest.raises(RunReplayRefusedError, match=r"integrity_check has no checkpoint in run original"):
        list(compare_run(pipeline, dataset="nexrad-l2", run_id="original"))
    under(pipeline, "require_checkpoint: true", "require_checkpoint: false")
    assert len(list(compare_run(pipeline, dataset="nexrad-l2", run_id="original"))) == len(STAGES)


@pytest.mark.clause("PCS-08", "DAG-05", "SEC-10")
def test_a_command_compares_a_run_and_the_configuration_of_a_dagster_run_replays_it(
    face: Face, objects: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    put(objects, volumes(2))
    first = face.ingest(partition=PARTITION)
    original = first.dagster_run.run_id
    comparison = call(*COMPARE, original, "--output", "json")
    assert comparison.code == 0, comparison.err
    assert [(row["stage"], row["diverges"]) for row in comparison.document] == [(stage, False) for stage in STAGES]
    for named in (original[:8], "latest"):
        assert call(*COMPARE, named, "--output", "json") == comparison
    assert f"run {original}" in call(*COMPARE, "latest").out
    config_values = {"run_id": original, "reason": "drill", "change_ref": "CHG-7"}
    config = {"ops": {"nexrad_l2__message_parse": {"config": {"replay": config_values}}}}
    proposed = face.ingest(partition=PARTITION, run_config=config, raise_on_error=False)
    assert not proposed.success
    [proposal] = own_tx(face.pipeline.ledger.review).waiting()
    assert proposal.decision == Decision(actor=DAGSTER_UI, reason="drill", change_ref="CHG-7")
    assert proposal.decision.dagster_run_id == proposed.dagster_run.run_id
    approve(ReplayEngine(pipeline=face.pipeline), proposal.proposal_id, PERSON)
    second = face.ingest(partition=PARTITION, run_config=config)
    assert second.success
    assert {record.ingest_run_id for record in traces.records(face.pipeline).values()} == {second.dagster_run.run_id}

    [chosen] = own_tx(face.pipeline.ledger).find(limit=1)
    alter_metadata(monkeypatch, lambda unit: unit.wal_id == chosen.wal_id, **{"nexrad:vcp": 11})
    config_values["run_id"] = second.dagster_run.run_id
    third = face.ingest(partition=PARTITION, run_config=config, raise_on_error=False)
    [failed] = [event for event in third.all_events if event.event_type is dg.DagsterEventType.STEP_FAILURE]
    assert "gives another result now" in str(failed.step_failure_data.error)
    assert call(*COMPARE, second.dagster_run.run_id).code == 4
    assert traces.statuses(face.pipeline) == {Status.SUCCEEDED: 2}
    compared = call(*COMPARE, "latest", "--dataset", "goes-abi")
    compared.refused(f"{third.dagster_run.run_id} has no stage of goes-abi", code=ExitCode.REFUSED)
    call(*COMPARE, "nobody").refused("nothing is recorded of such a run; observed nobody")

    put(objects, [replace(volumes(3)[2], stored=b"")])
    barren = face.ingest(partition=PARTITION).dagster_run.run_id
    call(*COMPARE, barren).refused("brought no unit to success", code=ExitCode.REFUSED)


WHY = Decision(actor="ada", reason="wrong projection upstream", change_ref="INC-7")
REPLAY, COMPARE = ("replay", "intents", "--json"), ("replay", "compare")


def failing(face: Face, node: type[Any], method: str, *, job: str = INGEST_JOB) -> None:
    """Run the day with a node that fails permanently, as the card does not retry wrong input."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node, method, Mock(side_effect=ConfigurationError(observed="injected")))
        selection = {"asset_selection": asset_keys("nexrad-l2")} if job == INGEST_JOB else {}
        assert not face.execute(job, partition=PARTITION, raise_on_error=False, **selection).success


def intents(face: Face) -> list[tuple[str, str]]:
    """Return node and status of every unresolved intent."""
    return [(intent.node.partition("@")[0], intent.status.value) for intent in face.pipeline.nodes.intents.unresolved()]


def status_of(face: Face, intent: int) -> IntentStatus:
    with face.pipeline.database.engine.connect() as connection:
        row = connection.exec_driver_sql(f"SELECT status FROM etl_wal WHERE wal_id = {intent}").one()
    return IntentStatus(row.status)


def work(face: Face) -> int:
    """Launch the ledger sensor's requests until it has none; return the number of ingests."""
    return sum(request.job_name == INGEST_JOB for request in face.work("nodd_ledger", quiet=2))


@pytest.mark.clause("IEN-16", "IEN-09")
def test_the_listing_of_a_failed_run_is_recorded_by_the_sensor_and_ingested_once(face: Face, objects: Path) -> None:
    failing(face, MessageParse, "transform")
    assert intents(face) == [("nexrad-l2.message_parse", "FAILED")]
    # The failed run had listed no object, so its intent is closed.
    face.tick("nodd_ledger")
    assert (intents(face), status_of(face, 1)) == ([], IntentStatus.SKIPPED)
    put(objects, volumes(3))
    failing(face, MessageParse, "transform")
    [intent] = face.pipeline.nodes.intents.unresolved()
    assert traces.statuses(face.pipeline) == Counter()
    # The recorded listing is used, not the bucket's current content.
    put(objects, volumes(4))

    face.tick("nodd_ledger")
    assert traces.statuses(face.pipeline) == {Status.PENDING: 3}
    assert {record.attempts for record in traces.records(face.pipeline).values()} == {0}
    # After failed runs, a partition waits before its next run.
    face.pipeline.clock = lambda: datetime.now(UTC) + timedelta(minutes=20)
    assert work(face) == 1
    assert traces.statuses(face.pipeline) == {Status.SUCCEEDED: 3}
    assert (intents(face), status_of(face, intent.wal_id)) == ([], IntentStatus.SKIPPED)


@pytest.mark.clause("IEN-16")
def test_a_failed_batch_is_left_to_the_next_run_that_claims_its_units(face: Face, call: Call) -> None:
    deliver(face.pipeline, *volumes(2))
    failing(face, IntegrityCheck, "transform")
    answer = call(*REPLAY, "--dry-run")
    [row] = answer.document
    assert (answer.code, row["node"], row["action"]) == (0, f"nexrad-l2.integrity_check@{PARTITION}", "wait")
    assert work(face) == 1
    assert traces.statuses(face.pipeline) == {Status.SUCCEEDED: 2}
    assert intents(face) == []


@pytest.mark.clause("IEN-16")
@pytest.mark.parametrize("retry_backoff_seconds", [3600])
def test_the_command_readmits_units_of_a_failed_intent_once_if_no_guard_holds_them(face: Face, call: Call) -> None:
    deliver(face.pipeline, *volumes(2))
    switches = face.pipeline.ledger.switches

    def fail(_: object) -> Any:
        # The rollback does not readmit units of a switched-off dataset: they stay failed.
        switches.engage("nexrad-l2", WHY)
        raise ConfigurationError(observed="injected")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IntegrityCheck, "transform", fail)
        assert not face.ingest(partition=PARTITION, raise_on_error=False).success
    assert traces.statuses(face.pipeline) == {Status.FAILED: 2}
    assert call(*REPLAY, "--dry-run").document[0]["action"] == "hold"
    assert call(*REPLAY, "--confirm", "--reason", "tried").code == 0
    assert traces.statuses(face.pipeline) == {Status.FAILED: 2}

    switches.release("nexrad-l2", WHY)
    answer = call(*REPLAY, "--dry-run")
    [row] = answer.document
    assert (answer.code, row["action"], row["units"]) == (0, "let in", 2)
    assert call(*REPLAY).code == 2
    assert call(*REPLAY, "--reason", "the reader is fixed").code == 3
    assert traces.statuses(face.pipeline) == {Status.FAILED: 2}
    answer = call(*REPLAY, "--reason", "the reader is fixed", "--confirm")
    [row] = answer.document
    assert (answer.code, row["why"].split()[0]) == (0, "replay")
    work(face)
    assert traces.statuses(face.pipeline) == {Status.SUCCEEDED: 2}
    assert (intents(face), call(*REPLAY).document) == ([], [])


@pytest.mark.clause("IEN-16")
def test_an_intent_with_quarantined_units_waits_for_a_person(face: Face, call: Call) -> None:
    deliver(face.pipeline, *volumes(1))
    failing(face, IntegrityCheck, "transform")
    waiting = [record.wal_id for record in traces.records(face.pipeline).values()]
    own_tx(face.pipeline.ledger).quarantine(waiting, reason_code="by_hand", decision=WHY)
    assert work(face) == 0
    answer = call(*REPLAY, "--confirm")
    [row] = answer.document
    assert (answer.code, row["action"]) == (0, "hold")
    assert intents(face) == [("nexrad-l2.integrity_check", "FAILED")]


@pytest.mark.clause("IEN-16")
def test_the_command_applies_a_failed_intent_of_a_node_without_claims(face: Face, objects: Path, call: Call) -> None:
    put(objects, volumes(2))
    assert face.ingest(partition=PARTITION).success
    failing(face, path_arrivals.PathArrivals, "transform", job=PATH_JOB)
    [intent] = face.pipeline.nodes.intents.unresolved()
    assert work(face) == 0
    answer = call(*REPLAY, "--confirm")
    [row] = answer.document
    assert (answer.code, row["intent"], row["action"]) == (0, intent.wal_id, "run")
    assert status_of(face, intent.wal_id) is IntentStatus.APPLIED
    assert face.pipeline.nodes.newest(intent.node).record["units"] == 2
    assert call(*REPLAY).document == []
