"""The IO manager's port to run-state: asked before an operator works, given every outcome, shown where one skips."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.defs.chain import FORCE_TAG, SKIPPED_TAG
from kfm_dagster.exports.explanations.explanation import Explanations
from kfm_dagster.ingest.node import ChainNode
from kfm_dagster.ingest.nodes import chain, operators
from kfm_dagster.stages import port
from kfm_dagster.stages.batch import SkipCause, StageBatch
from kfm_dagster.stages.port import RunStateKey, RunStatePort
from kfm_dagster_tests.integration.chain import PARTITION, put, volumes
from kfm_dagster_tests.integration.face import Face, materialisations

pytestmark = pytest.mark.one_database

JOB = "ingest_nexrad_l2"
NODES = [f"nexrad-l2.{operator}" for operator in operators()]


@pytest.mark.clause("DAG-02", "RSP-03")
def test_a_skip_is_asked_of_the_port_before_the_operator_works_and_only_there(
    face: Face, objects: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(objects, volumes(1))
    told: list[str] = []
    skip = RunStatePort.skip

    def asked(port: RunStatePort, key: RunStateKey, **more: Any) -> StageBatch | None:
        told.append(f"{key.dataset_id} asks")
        return skip(port, key, **more)

    monkeypatch.setattr(RunStatePort, "skip", asked)
    for kind in chain():

        def works(node: ChainNode, of: Any = kind.transform) -> Sequence[Envelope]:
            told.append(f"{node.kind} works")
            made: Sequence[Envelope] = of(node)
            return made

        monkeypatch.setattr(kind, "transform", works)
    first = face.execute(JOB, partition=PARTITION)
    assert told == [f"{node} {does}" for node in NODES for does in ("asks", "works")]
    told.clear()
    # A run that the port knows does nothing, whatever else the database holds.

    def says_so(port: RunStatePort, key: RunStateKey, **_: Any) -> StageBatch:
        found = port.load_output(key.dataset_id, first.dagster_run.run_id)
        return replace(found, state=replace(found.state, run_id=key.run_id), skipped=SkipCause.ALREADY_SUCCEEDED)

    monkeypatch.setattr(RunStatePort, "skip", says_so)
    face.execute(JOB, partition=PARTITION, tags={"kfm/force": "the port says no"})
    assert told == []


CODE_VERSION_TAG = "dagster/code_version"
DATA_VERSION_TAG = "dagster/data_version"
NOUNS = {node.asset: node.operator for node in chain()}


def observations(result: Any) -> dict[str, dict[str, Any]]:
    """Metadata of every observation of a run, by the asset's noun."""
    return {
        event.asset_key.path[-1]: {
            name: value.value for name, value in event.asset_observation_data.asset_observation.metadata.items()
        }
        for event in result.all_events
        if event.event_type is dg.DagsterEventType.ASSET_OBSERVATION
    }


def evidence(metadata: dict[str, Any]) -> tuple[dict[str, str], list[dict[str, str]]]:
    """What stands behind a page's click: the values by name, and the inputs."""
    known, _, inputs = metadata["evidence"].rstrip().partition("\n\ninputs:\n\n")
    return {row["what"]: row["value"] for row in _rows(known)}, _rows(inputs)


def _rows(table: str) -> list[dict[str, str]]:
    lines = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


def versions(result: Any) -> dict[str, tuple[str, str]]:
    """Code and data version of every materialisation of a run, by the asset's noun."""
    return {
        event.asset_key.path[-1]: (
            event.step_materialization_data.materialization.tags[CODE_VERSION_TAG],
            event.step_materialization_data.materialization.tags[DATA_VERSION_TAG],
        )
        for event in result.get_asset_materialization_events()
    }


@pytest.mark.clause("DAG-02", "DAG-16", "RSP-12", "IEN-11")
def test_materialisations_and_observations_say_what_the_command_says(
    face: Face, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(objects, volumes(1))
    first = face.execute(JOB, partition=PARTITION)
    assert_steps_are_published(face, first.dagster_run.run_id)
    with monkeypatch.context() as patch:
        # An unchanged day of ten thousand units costs no more than one of ten: nothing is read again.
        patch.setattr(port, "from_parquet", lambda _: pytest.fail("a batch that was handed on was read"))
        second = face.execute(JOB, partition=PARTITION)
    forced = face.execute(JOB, partition=PARTITION, tags={FORCE_TAG: "the reader was wrong"})
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
    """The run published its steps at its end, by itself; each uses what the one before it made."""
    root = Path(face.pipeline.settings.lineage) / "steps"
    for _ in range(2):  # the sensor finds nothing unpublished
        [told] = root.glob("openlineage/*/*.ndjson")
        [proven] = root.glob("prov/*/*.jsonld")
        face.tick("nodd_ledger")

    ends = [event for event in map(json.loads, told.read_text().splitlines()) if event["eventType"] != "START"]
    assert [event["job"]["name"] for event in ends] == [f"nexrad-l2.{operator}" for operator in operators()]
    assert {event["run"]["facets"]["parent"]["run"]["runId"] for event in ends} == {run}
    for before, after in pairwise(ends):
        assert [entry for entry in after["inputs"] if entry in before["outputs"]], after["job"]["name"]

    nodes = json.loads(proven.read_text())["@graph"]
    made = {node["wasGeneratedBy"]: node["alternateOf"] for node in nodes if "wasGeneratedBy" in node}
    activities = [node for node in nodes if "kfm:node" in node]
    assert [node["id"] for node in activities] == [
        event["run"]["facets"]["kfmStep"]["prov_activity_id"] for event in ends
    ]
    for before, after in pairwise(activities):
        assert made[before["id"]] in after["used"], after["kfm:node"]
