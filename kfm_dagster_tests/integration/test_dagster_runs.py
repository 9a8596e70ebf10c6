"""Runs by Dagster: run-state, re-execution, claims, results of units, the IO manager's port."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import dagster as dg
import pytest
from sqlalchemy.exc import OperationalError

import kfm_dagster
from kfm_dagster.catalog.store import Catalog
from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.defs.chain import FORCE_TAG, SKIPPED_TAG, daily_partitions
from kfm_dagster.defs.jobs import INGEST_JOB, evidence_job
from kfm_dagster.defs.resources import PipelineResource, SqsQueueResource, WalResource
from kfm_dagster.defs.sensors import ingest_sensors
from kfm_dagster.errors import ContractError
from kfm_dagster.exports.explanations.explanation import Explanations
from kfm_dagster.idempotent_node.transaction import IdempotentNodes
from kfm_dagster.ingest.node import ChainNode
from kfm_dagster.ingest.nodes import IntegrityCheck, MetadataExtract, StacRegister, chain, operators
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.lineage.store import Lineage
from kfm_dagster.run_state.record import Outcome
from kfm_dagster.run_state.store import RelationalRunState
from kfm_dagster.stages import port
from kfm_dagster.stages.batch import SkipCause, StageBatch
from kfm_dagster.stages.envelope_table import from_parquet
from kfm_dagster.stages.port import RunStateKey, RunStatePort
from kfm_dagster.storage.statements import sql_root
from kfm_dagster_tests.catalog import trees
from kfm_dagster_tests.factories import envelope
from kfm_dagster_tests.integration import face as face_module
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import (
    DAY,
    PARTITION,
    CrashError,
    assert_conserved,
    deliver,
    missing,
    put,
    volumes,
)
from kfm_dagster_tests.integration.face import Face, materialisations
from kfm_dagster_tests.transactions import own_tx

NODES = [f"nexrad-l2.{operator}" for operator in operators()]
START = datetime.fromisoformat(f"{PARTITION}T00:00:00+00:00")


@pytest.mark.clause("DAG-02", "RSP-01", "RSP-11")
def test_a_run_leaves_one_run_state_row_per_node_with_the_node_s_output(face: Face, objects: Path) -> None:
    put(objects, volumes(2))
    result = face.ingest(partition=PARTITION)
    assert result.success
    states = face.pipeline.stages.run_states.of_run(result.dagster_run.run_id)
    assert [(state.dataset_id, state.outcome) for state in states] == [(node, Outcome.SUCCESS) for node in NODES]
    for state in states:
        stored = from_parquet((Path(face.pipeline.settings.storage) / str(state.artifact_uri)).read_bytes())
        recalled = face.pipeline.stages.port.load_output(state.dataset_id, state.run_id)
        assert [unit.wal_id for unit in stored] == [unit.wal_id for unit in recalled.envelopes]
        assert {unit.object_uri for unit in stored} == {item.uri for item in volumes(2)}
    assert {record.ingest_run_id for record in traces.records(face.pipeline).values()} == {result.dagster_run.run_id}


def execute(instance: dg.DagsterInstance, reexecution: dg.ReexecutionOptions | None = None) -> dg.JobExecutionResult:
    """Run or re-execute the job for DAY."""
    with dg.execute_job(
        dg.reconstructable(face_module.ingest_nexrad_l2),
        instance=instance,
        tags={"dagster/partition": PARTITION},
        reexecution_options=reexecution,
    ) as result:
        return result


def executed(result: dg.JobExecutionResult) -> list[str]:
    """Return the operators and checks that succeeded, by the last part of the step's key."""
    return [event.step_key.removeprefix("nexrad_l2__") for event in result.get_step_success_events()]


def skipped(result: dg.JobExecutionResult) -> list[str]:
    """Return the steps that were skipped because this run had already executed them."""
    nouns = []
    for event in result.all_events:
        if event.event_type is dg.DagsterEventType.ASSET_OBSERVATION:
            metadata = event.asset_observation_data.asset_observation.metadata
            assert (metadata["outcome"].value, metadata["cause"].value) == ("skipped", "ALREADY_SUCCEEDED")
            nouns.append(str(event.step_key).removeprefix("nexrad_l2__"))
    return nouns


@pytest.mark.clause("RSP-11", "DAG-07", "WAL-08", "BEY-03")
def test_a_reexecution_from_failure_uses_the_id_and_the_claims_of_the_root_run(
    face: Face, dagster_home: dg.DagsterInstance, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance, pipeline = dagster_home, face.pipeline
    put(objects, volumes(2))
    with monkeypatch.context() as patch:
        patch.setattr(Catalog, "register", Mock(side_effect=CrashError))
        first = execute(instance)
    assert not first.success
    assert traces.statuses(pipeline) == {Status.IN_PROGRESS: 2}

    reexecuted = execute(instance, dg.ReexecutionOptions.from_failure(first.run_id, instance))
    assert reexecuted.success
    assert reexecuted.run_id != first.run_id
    assert instance.get_run_by_id(reexecuted.run_id).root_run_id == first.run_id
    assert [step for step in executed(reexecuted) if "every_unit" not in step] == [
        "stac_register",
        "provenance_emit",
        "settle",
    ]
    records = traces.records(pipeline).values()
    assert {(record.status, record.attempts, record.ingest_run_id) for record in records} == {
        (Status.SUCCEEDED, 1, first.run_id)
    }
    assert pipeline.stages.run_states.of_run(reexecuted.run_id) == []
    rows = pipeline.stages.run_states.of_run(first.run_id)
    assert {(row.dataset_id, row.outcome) for row in rows} == {(node, Outcome.SUCCESS) for node in NODES}
    assert_conserved(pipeline)


@pytest.mark.clause("DAG-07", "PCS-03", "PCS-06")
def test_a_permanently_failed_run_is_rolled_back_and_a_new_run_ingests_its_units(
    face: Face, dagster_home: dg.DagsterInstance, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance, pipeline = dagster_home, face.pipeline
    put(objects, volumes(2))
    with monkeypatch.context() as patch:
        patch.setattr(
            Lineage, "emit", Mock(side_effect=ContractError(observed="an error that a retry does not repair"))
        )
        first = execute(instance)
    assert not first.success
    assert traces.statuses(pipeline) == {Status.PENDING: 2}
    assert trees.files(Path(pipeline.settings.catalog)) == {}
    reexecutions = {
        "stac_items has no output in this run, or it was rolled back": dg.ReexecutionOptions.from_failure(
            first.run_id, instance
        ),
        "was rolled back in this run": dg.ReexecutionOptions(parent_run_id=first.run_id),
    }
    for line, how in reexecutions.items():
        reexecuted = execute(instance, how)
        [refused] = [event.step_failure_data.error for event in reexecuted.all_events if event.is_step_failure]
        assert line in str(refused)
    assert execute(instance).success
    assert {(record.status, record.attempts) for record in traces.records(pipeline).values()} == {(Status.SUCCEEDED, 2)}
    assert len(traces.catalog_items(pipeline)) == 2
    assert_conserved(pipeline)


@pytest.mark.clause("DAG-07", "RSP-11", "WAL-05", "WAL-06", "PCS-05")
def test_a_full_reexecution_skips_succeeded_steps_and_changes_nothing(
    face: Face, dagster_home: dg.DagsterInstance, objects: Path
) -> None:
    instance, pipeline = dagster_home, face.pipeline
    items = [*volumes(2), missing(volumes(3)[2])]
    deliver(pipeline, *items)
    first = execute(instance)
    before = left_by(pipeline)
    put(objects, volumes(3))  # the third object arrives; this run no longer holds its unit

    reexecuted = execute(instance, dg.ReexecutionOptions(parent_run_id=first.run_id))
    assert reexecuted.success
    assert instance.get_run_by_id(reexecuted.run_id).root_run_id == first.run_id
    # The step with the failed unit is skipped, too: another run retries the unit.
    assert skipped(reexecuted) == [str(operator) for operator in operators()]
    assert left_by(pipeline) == before
    traces.assert_once(before["events"])
    # The lineage of both succeeded units has the message that announced them, so the message's edge is written twice.
    [(message, _, _)] = [edge for edge, count in before["edges"].items() if count > 1]
    assert sum(edge[1:] == ("used", message) for edge in before["edges"]) == 2
    assert_conserved(pipeline)


def left_by(pipeline: Pipeline) -> dict[str, Any]:
    """Return records, catalog and both forms of lineage."""
    lineage = Path(pipeline.settings.lineage)
    return {
        "records": traces.records(pipeline),
        "catalog": traces.catalog_tree(Path(pipeline.settings.catalog)),
        "events": traces.events(lineage),
        "edges": traces.prov_edges(lineage),
    }


@pytest.mark.clause("DAG-06")
def test_the_wal_is_a_resource_whose_dsn_selects_the_ledger(
    tmp_path: Path, face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFM_HOME", str(tmp_path / "elsewhere"))  # `face` has another ledger
    wal = WalResource(dsn=f"sqlite:///{tmp_path / 'elsewhere.db'}")
    resource = PipelineResource(wal=wal, queue=SqsQueueResource())
    pipeline = resource.get()
    assert wal.get() is pipeline.ledger
    assert pipeline.database.engine.url.database == str(tmp_path / "elsewhere.db")
    assert resource.get() is pipeline
    assert requested_partitions(face, wal, resource) == []
    own_tx(pipeline.ledger).ensure([envelope(time_range_start=START)])
    assert requested_partitions(face, wal, resource) == [PARTITION]
    assert face.pipeline.ledger.pending_by_partition() == []
    pipeline.close()
    definitions = face.repository.get_top_level_resources()
    assert set(definitions) == {"wal", "pipeline", "stage_io"}
    # Ops require the ledger by the key `wal`; sensors receive it as a resource (`defs/sensors.py`).
    for op in face.repository.get_job(INGEST_JOB).nodes:
        assert "wal" in op.definition.required_resource_keys


def requested_partitions(face: Face, wal: WalResource, pipeline: PipelineResource) -> list[str | None]:
    """Return the partitions that `nodd_ledger` requests at its second tick with these resources."""
    jobs = [face.repository.get_job(INGEST_JOB), evidence_job()]
    days = daily_partitions(DAY)
    _, sensor = ingest_sensors(interval_seconds=5, days=days, pipeline=pipeline, wal=wal, jobs=jobs)
    cursor = None
    for _ in range(2):
        with dg.build_sensor_context(
            instance=face.instance, repository_def=face.repository, sensor_name=sensor.name, cursor=cursor
        ) as context:
            tick = sensor.evaluate_tick(context)
        cursor = tick.cursor
    return [request.partition_key for request in tick.run_requests or ()]


CHANGE = re.compile(
    r"\b(?:INSERT\s+INTO|REPLACE\s+INTO|UPDATE|DELETE\s+FROM|MERGE\s+INTO)\s+nodd_wal_(?:records|transitions)\b",
    re.IGNORECASE,
)


@pytest.mark.clause("DAG-06", "WAL-07")
def test_no_code_outside_the_ledger_changes_a_record() -> None:
    package = Path(kfm_dagster.__file__).parent
    queries = Path(str(sql_root())) / "queries"
    changing = {
        path.relative_to(queries).name for path in queries.rglob("*.sql") if CHANGE.search(path.read_text("utf-8"))
    }
    assert changing == {"ledger.sql"}
    sources = {path.relative_to(package).as_posix(): path.read_text("utf-8") for path in package.rglob("*.py")}
    assert [name for name, text in sources.items() if CHANGE.search(text)] == []
    # Only code of `ledger` runs statements of `ledger.sql`; `ledger.extension_fields` is a contract's field.
    statement = re.compile(r"""["']ledger\.(?!extension_fields)\w+["']""")
    users = {name.split("/")[0] for name, text in sources.items() if statement.search(text)}
    assert users == {"ledger"}


AWAY = OperationalError("SELECT", {}, Exception("server closed the connection unexpectedly"))


def once(of: Any, *, where: Any = lambda *_: True) -> Any:
    """Return the method; its first matching call fails as if the database were unavailable."""
    calls: list[None] = []

    def called(*arguments: Any, **more: Any) -> Any:
        if where(*arguments) and not calls:
            calls.append(None)
            raise AWAY
        return of(*arguments, **more)

    return called


@pytest.mark.clause("PCS-04", "PCS-06")
def test_a_briefly_unavailable_database_is_retried(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    deliver(face.pipeline, *volumes(2))
    # Three stages fail once: one reading run-state, two computing; for the last, recording the failure fails, too.
    of_the_stage = once(RelationalRunState.get, where=lambda _, name, __: name.endswith(".integrity_check"))
    monkeypatch.setattr(RelationalRunState, "get", of_the_stage)
    for kind in (MetadataExtract, StacRegister):
        monkeypatch.setattr(kind, "transform", once(kind.transform))
    registering = once(IdempotentNodes.fail, where=lambda _, intent, *__: "stac_register" in intent.node)
    monkeypatch.setattr(IdempotentNodes, "fail", registering)
    result = face.ingest(partition=DAY.isoformat())
    retried = [event.step_key for event in result.all_events if event.event_type_value == "STEP_UP_FOR_RETRY"]
    assert retried == [f"nexrad_l2__{kind.operator}" for kind in (IntegrityCheck, MetadataExtract, StacRegister)]
    assert traces.statuses(face.pipeline) == {Status.SUCCEEDED: 2}


@pytest.mark.clause("DAG-02", "RSP-03")
def test_only_the_run_state_port_decides_whether_an_operator_is_skipped(
    face: Face, objects: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(objects, volumes(1))
    calls: list[str] = []
    skip = RunStatePort.skip

    def load(port: RunStatePort, key: RunStateKey, **more: Any) -> StageBatch | None:
        calls.append(f"{key.dataset_id} asks")
        return skip(port, key, **more)

    monkeypatch.setattr(RunStatePort, "skip", load)
    for kind in chain():

        def works(node: ChainNode, of: Any = kind.transform) -> Sequence[Envelope]:
            calls.append(f"{node.kind} works")
            result: Sequence[Envelope] = of(node)
            return result

        monkeypatch.setattr(kind, "transform", works)
    first = face.ingest(partition=PARTITION)
    assert calls == [f"{node} {does}" for node in NODES for does in ("asks", "works")]
    calls.clear()
    # A run known to the port does nothing, whatever the database holds.

    def known_to_port(port: RunStatePort, key: RunStateKey, **_: Any) -> StageBatch:
        output = port.load_output(key.dataset_id, first.dagster_run.run_id)
        return replace(output, state=replace(output.state, run_id=key.run_id), skipped=SkipCause.ALREADY_SUCCEEDED)

    monkeypatch.setattr(RunStatePort, "skip", known_to_port)
    face.ingest(partition=PARTITION, tags={"kfm/force": "the port says no"})
    assert calls == []


CODE_VERSION_TAG = "dagster/code_version"
DATA_VERSION_TAG = "dagster/data_version"
NOUNS = {node.asset: node.operator for node in chain()}


def observations(result: Any) -> dict[str, dict[str, Any]]:
    """Return the metadata of every observation of a run, by the last part of the asset's key."""
    return {
        event.asset_key.path[-1]: {
            name: value.value for name, value in event.asset_observation_data.asset_observation.metadata.items()
        }
        for event in result.all_events
        if event.event_type is dg.DagsterEventType.ASSET_OBSERVATION
    }


def evidence(metadata: dict[str, Any]) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Parse the metadata entry `evidence`: values by name, and inputs."""
    values, _, inputs = metadata["evidence"].rstrip().partition("\n\ninputs:\n\n")
    return {row["what"]: row["value"] for row in _rows(values)}, _rows(inputs)


def _rows(table: str) -> list[dict[str, str]]:
    lines = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


def versions(result: Any) -> dict[str, tuple[str, str]]:
    """Return code and data version of every materialisation of a run, by the last part of the asset's key."""
    return {
        event.asset_key.path[-1]: (
            event.step_materialization_data.materialization.tags[CODE_VERSION_TAG],
            event.step_materialization_data.materialization.tags[DATA_VERSION_TAG],
        )
        for event in result.get_asset_materialization_events()
    }


@pytest.mark.clause("DAG-02", "DAG-16", "RSP-12", "IEN-11")
def test_materialisations_and_observations_show_the_same_evidence_as_kfm_runs_show(
    face: Face, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(objects, volumes(1))
    first = face.ingest(partition=PARTITION)
    assert_steps_are_published(face, first.dagster_run.run_id)
    with monkeypatch.context() as patch:
        # An unchanged day costs the same for ten thousand units as for ten: nothing is read again.
        patch.setattr(port, "from_parquet", lambda _: pytest.fail("a batch passed in memory was read from storage"))
        second = face.ingest(partition=PARTITION)
    forced = face.ingest(partition=PARTITION, tags={FORCE_TAG: "the reader was wrong"})
    for result, skipped in ((first, (None, None)), (second, ("yes", str(len(NODES)))), (forced, (None, None))):
        run = face.instance.get_run_by_id(result.dagster_run.run_id)
        assert (run.tags.get(SKIPPED_TAG), run.tags.get(f"{SKIPPED_TAG}.nexrad-l2")) == skipped
    reader = Explanations(database=face.pipeline.database, run_states=face.pipeline.stages.run_states)
    for result in (first, second, forced):
        shown = materialisations(result)
        behind = {noun: evidence(metadata) for noun, metadata in shown.items()}
        assert versions(result) == {
            noun: (face.pipeline.code.code_sha, behind[noun][0]["content_hash"]) for noun in NOUNS
        }
        for noun, operator in NOUNS.items():
            account = reader.node(f"nexrad-l2.{operator}", result.dagster_run.run_id)
            known, inputs = behind[noun]
            assert known["content_hash"] == account.content_hash
            assert known["intent"] == account.intent
            assert known["inputs_hash"] == account.inputs_hash
            assert inputs == [{name: str(value) for name, value in entry.items()} for entry in account.inputs]
            assert {name: shown[noun][name] for name in account.took} == account.took
    observed = observations(second)
    assert observed.keys() == NOUNS.keys()
    assert versions(first) == versions(second)
    assert all(versions(first)[noun] != versions(forced)[noun] for noun in NOUNS)
    assert observations(first) == {}
    for noun, metadata in observed.items():
        assert (metadata["cause"], metadata["applied_by"]) == ("CONTENT_APPLIED", first.dagster_run.run_id)
        assert evidence(metadata)[0]["content_hash"] == evidence(materialisations(first)[noun])[0]["content_hash"]
        assert evidence(materialisations(second)[noun])[0]["applied_by"] == first.dagster_run.run_id
        assert not {name for name in materialisations(second)[noun] if name.startswith("run_ca")}
    assert {metadata.get("forced") for metadata in materialisations(forced).values()} == {"the reader was wrong"}


def assert_steps_are_published(face: Face, run: str) -> None:
    """Check that the run published its steps at its end, and that each step uses the previous step's output."""
    root = Path(face.pipeline.settings.lineage) / "steps"
    for _ in range(2):  # still one file after a tick, which finds all published
        [file] = root.glob("openlineage/*/*.ndjson")
        [proven] = root.glob("prov/*/*.jsonld")
        face.tick("nodd_ledger")

    ends = [event for event in map(json.loads, file.read_text().splitlines()) if event["eventType"] != "START"]
    assert [event["job"]["name"] for event in ends] == [f"nexrad-l2.{operator}" for operator in operators()]
    assert {event["run"]["facets"]["parent"]["run"]["runId"] for event in ends} == {run}
    for before, after in pairwise(ends):
        assert [entry for entry in after["inputs"] if entry in before["outputs"]], after["job"]["name"]

    nodes = json.loads(proven.read_text())["@graph"]
    alternates = {node["wasGeneratedBy"]: node["alternateOf"] for node in nodes if "wasGeneratedBy" in node}
    activities = [node for node in nodes if "kfm:node" in node]
    assert [node["id"] for node in activities] == [
        event["run"]["facets"]["kfmStep"]["prov_activity_id"] for event in ends
    ]
    for before, after in pairwise(activities):
        assert alternates[before["id"]] in after["used"], after["kfm:node"]
