"""What lineage says of a node's outcome is what run-state has: success, partial, failed and skipped, on both paths."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from kfm_dagster.ingest import nodes
from kfm_dagster.ingest.nodes import Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.lineage.store import Lineage
from kfm_dagster.stages.failure import StageFailedError
from kfm_dagster_tests.integration.chain import DAY, announce, missing, put, run_chain, take, volumes
from kfm_dagster_tests.run_state.test_public_run_state import FACET

RUNS = [f"{number}1111111-1111-4111-8111-111111111111" for number in range(4)]


def told(root: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The facet of each node's end in each run."""
    lines = [line for file in root.glob("steps/openlineage/*/*.ndjson") for line in file.read_text().splitlines()]
    found = [event["run"]["facets"]["kfmRunState"] for event in map(json.loads, lines) if event["eventType"] != "START"]
    return {(facet["dataset_id"], facet["run_id"]): facet for facet in found}


def proven(root: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The activity of each node in each run."""
    activities = [node for node in graph(root).values() if "kfm:node" in node]
    return {(activity["kfm:dataset_id"], activity["kfm:run_id"]): activity for activity in activities}


def graph(root: Path) -> dict[str, dict[str, Any]]:
    """The nodes of PROV by their ids."""
    graphs = [json.loads(file.read_text())["@graph"] for file in root.glob("steps/prov/*/*.jsonld")]
    return {node["id"]: node for nodes in graphs for node in nodes}


def work(pipeline: Pipeline, objects: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole run, the same listing again, a run of which a unit fails, and one that fails as a whole."""
    items = volumes(4)
    put(objects, items[:1])
    run_chain(pipeline, "nexrad-l2", DAY.isoformat(), RUNS[0])
    run_chain(pipeline, "nexrad-l2", DAY.isoformat(), RUNS[1])
    put(objects, items[1:2])
    events = [items[1].event(), missing(items[2]).event()]
    take(pipeline, announce(events, registry=pipeline.registry))
    run_chain(pipeline, "nexrad-l2", DAY.isoformat(), RUNS[2], Source.LEDGER)
    take(pipeline, announce([items[3].event()], registry=pipeline.registry))
    monkeypatch.setattr(nodes.IntegrityCheck, "transform", lambda _: 1 / 0)
    with pytest.raises(StageFailedError):
        run_chain(pipeline, "nexrad-l2", DAY.isoformat(), RUNS[3], Source.LEDGER)


@pytest.mark.clause("RSP-05", "RSP-09", "RSP-16", "IEN-05", "IEN-11")
def test_every_node_is_told_with_its_run_its_dataset_its_inputs_and_the_outcome_that_run_state_has(
    make_pipeline: Callable[..., Pipeline],
    objects: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = make_pipeline()
    work(pipeline, objects, monkeypatch)
    root = tmp_path / "told"
    Lineage(pipeline.database, str(root), clock=pipeline.clock).publish_staged()

    records = {(state.dataset_id, run): state for run in RUNS for state in pipeline.stages.run_states.of_run(run)}
    facets, activities = told(root), proven(root)
    assert {key: facet["outcome"] for key, facet in facets.items()} == {
        key: state.outcome.value for key, state in records.items()
    }
    assert {facet["outcome"] for facet in facets.values()} == {"success", "partial", "failed", "skipped"}
    schema = jsonschema_rs.validator_for(json.loads(FACET.read_text(encoding="utf-8")), validate_formats=True)
    for facet in facets.values():
        schema.validate(facet)
    assert {key: activity["kfm:outcome"] for key, activity in activities.items()} == {
        key: facet["outcome"] for key, facet in facets.items()
    }
    for key, activity in activities.items():
        state = records[key]
        if state.outcome in ("success", "partial"):
            assert json.loads(activity["kfm:validation_summary"]) == state.validation_summary

    nodes_of = graph(root)
    for (dataset_id, run_id), step in activities.items():
        run = nodes_of[step["wasInformedBy"]]
        assert (run["type"], run["kfm:run_id"]) == (["Activity", "kfm:Run"], run_id)
        made = [node for node in nodes_of.values() if node.get("wasGeneratedBy") == step["id"]]
        assert len(made) == (step["kfm:status"] == "APPLIED")
        for output in made:
            dataset = nodes_of[output["specializationOf"]]
            assert (dataset["type"], dataset["kfm:dataset_id"]) == (["Entity", "kfm:Dataset"], dataset_id)

    # A run from the ledger asks it by name: what it claimed is known with the effect, and stands on the intent then.
    node = f"nexrad-l2.message_parse@{DAY}"
    [intent] = [one for one in pipeline.nodes.intents.of_run(RUNS[2]) if one.node == node]
    claimed = pipeline.stages.port.load_output("nexrad-l2.message_parse", RUNS[2])
    assert claimed is not None
    lines = sorted(f"{unit.wal_id} {unit.record_version}\n" for unit in claimed.envelopes)
    assert len(lines) == 2
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    assert intent.claimed == {"uri": f"ledger:nexrad-l2@{DAY}", "checksum": digest}
    [used] = activities["nexrad-l2.message_parse", RUNS[2]]["used"]
    assert (nodes_of[used]["kfm:uri"], nodes_of[used]["kfm:checksum"]) == (f"ledger:nexrad-l2@{DAY}", digest)
