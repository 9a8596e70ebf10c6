"""What a run records: outcomes of nodes in lineage and run-state, sources of outputs, numbers of rows."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import sqlalchemy as sa

from kfm_dagster.ingest import nodes
from kfm_dagster.ingest.nodes import Source, operators
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.policy import ReplayReason
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.lineage.store import Lineage
from kfm_dagster.stages.failure import StageFailedError
from kfm_dagster_tests.integration.chain import DAY, deliver, missing, notify, put, run_chain, run_pending, volumes
from kfm_dagster_tests.run_state.test_public_run_state import FACET
from kfm_dagster_tests.transactions import own_tx

RUNS = [f"{number}1111111-1111-4111-8111-111111111111" for number in range(4)]


def end_facets(root: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the facet of each node's end in each run."""
    lines = [line for file in root.glob("steps/openlineage/*/*.ndjson") for line in file.read_text().splitlines()]
    facets = [
        event["run"]["facets"]["kfmRunState"] for event in map(json.loads, lines) if event["eventType"] != "START"
    ]
    return {(facet["dataset_id"], facet["run_id"]): facet for facet in facets}


def proven(root: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the activity of each node in each run."""
    activities = [node for node in graph(root).values() if "kfm:node" in node]
    return {(activity["kfm:dataset_id"], activity["kfm:run_id"]): activity for activity in activities}


def graph(root: Path) -> dict[str, dict[str, Any]]:
    """Return the nodes of PROV by id."""
    graphs = [json.loads(file.read_text())["@graph"] for file in root.glob("steps/prov/*/*.jsonld")]
    return {node["id"]: node for nodes in graphs for node in nodes}


def work(pipeline: Pipeline, objects: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Execute a complete run, the same listing again, and two runs with failures."""
    items = volumes(4)
    put(objects, items[:1])
    run_chain(pipeline, "nexrad-l2", DAY.isoformat(), RUNS[0])
    run_chain(pipeline, "nexrad-l2", DAY.isoformat(), RUNS[1])
    deliver(pipeline, items[1], missing(items[2]))
    run_pending(pipeline, RUNS[2])
    notify(pipeline, items[3])
    monkeypatch.setattr(nodes.IntegrityCheck, "transform", lambda _: 1 / 0)
    with pytest.raises(StageFailedError):
        run_pending(pipeline, RUNS[3])


@pytest.mark.clause("RSP-05", "RSP-09", "RSP-16", "IEN-05", "IEN-11")
def test_lineage_has_each_node_with_its_run_dataset_inputs_and_the_outcome_in_run_state(
    make_pipeline: Callable[..., Pipeline],
    objects: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = make_pipeline()
    work(pipeline, objects, monkeypatch)
    root = tmp_path / "published"
    Lineage(pipeline.database, str(root), clock=pipeline.clock).publish_staged()

    records = {(state.dataset_id, run): state for run in RUNS for state in pipeline.stages.run_states.of_run(run)}
    facets, activities = end_facets(root), proven(root)
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
        outputs = [node for node in nodes_of.values() if node.get("wasGeneratedBy") == step["id"]]
        assert len(outputs) == (step["kfm:status"] == "APPLIED")
        for output in outputs:
            dataset = nodes_of[output["specializationOf"]]
            assert (dataset["type"], dataset["kfm:dataset_id"]) == (["Entity", "kfm:Dataset"], dataset_id)

    # A run over pending units names the ledger as its source; the claim is added to the intent afterwards.
    node = f"nexrad-l2.message_parse@{DAY}"
    [intent] = [row for row in pipeline.nodes.intents.of_run(RUNS[2]) if row.node == node]
    claimed = pipeline.stages.port.load_output("nexrad-l2.message_parse", RUNS[2])
    lines = sorted(f"{unit.wal_id} {unit.record_version}\n" for unit in claimed.envelopes)
    assert len(lines) == 2
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    assert intent.claimed == {"uri": f"ledger:nexrad-l2@{DAY}", "checksum": digest}
    [used] = activities["nexrad-l2.message_parse", RUNS[2]]["used"]
    assert (nodes_of[used]["kfm:uri"], nodes_of[used]["kfm:checksum"]) == (f"ledger:nexrad-l2@{DAY}", digest)


NODES = [f"nexrad-l2.{operator}@{DAY}" for operator in operators()]


def lineages(pipeline: Pipeline, run_id: str) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Return each stage's output and its sources, in order of the stages."""
    lineage_of_stages = []
    for intent, node in zip(pipeline.nodes.intents.of_run(run_id), NODES, strict=True):
        output = own_tx(pipeline.nodes).output(intent.content_hash)
        output_node, *sources = output.lineage["prov"]
        assert (output_node["kfm:node"], output_node["id"]) == (node, f"urn:sha256:{output.record['artifact_sha256']}")
        assert sorted(source["id"] for source in sources) == output_node["wasDerivedFrom"]
        lineage_of_stages.append((output_node, sources))
    return lineage_of_stages


@pytest.mark.clause("IEN-16")
@pytest.mark.parametrize("source", [Source.LEDGER, Source.LISTING])
def test_each_output_names_the_output_before_and_the_first_names_its_claim(pipeline: Pipeline, source: Source) -> None:
    items = volumes(3)
    deliver(pipeline, *items[:2], missing(items[2]))
    run_chain(pipeline, "nexrad-l2", DAY.isoformat(), "run", source)

    first, *others = lineages(pipeline, "run")
    for (before, _), (output, _) in zip([first, *others], others, strict=False):
        assert output["wasDerivedFrom"] == [before["id"]]
    # A record starts at version 1; the claim increments the version to 2.
    claimed = "".join(sorted(f"{record.wal_id} 2\n" for record in own_tx(pipeline.ledger).find(limit=10)))
    ledger = {"id": f"urn:sha256:{hashlib.sha256(claimed.encode()).hexdigest()}", "kfm:uri": f"ledger:nexrad-l2@{DAY}"}
    assert claimed.count("\n") == 3
    names = {entry["kfm:uri"]: entry["id"] for entry in first[1]}
    assert names.pop(ledger["kfm:uri"]) == ledger["id"]
    inputs = pipeline.nodes.intents.of_run("run")[0].payload["inputs"]
    sources = {entry["uri"]: f"urn:sha256:{entry['checksum']}" for entry in inputs if entry["uri"] != ledger["kfm:uri"]}
    assert names == sources
    assert len(names) == {Source.LEDGER: 0, Source.LISTING: 1}[source]


@pytest.mark.clause("IEN-16")
def test_the_output_of_a_retried_unit_names_its_later_attempt(pipeline: Pipeline, objects: Path) -> None:
    items = volumes(2)
    deliver(pipeline, items[0], missing(items[1]))
    run_pending(pipeline, "run")
    put(objects, items)
    own_tx(pipeline.ledger).requeue(
        [own_tx(pipeline.ledger).find(status=Status.FAILED, limit=1)[0].wal_id], reason=ReplayReason.RETRY
    )
    run_pending(pipeline, "again")
    before, after = (lineages(pipeline, run)[0][0]["wasDerivedFrom"] for run in ("run", "again"))
    assert set(before).isdisjoint(after)


STAGES = 6
BY_STAGE = ["etl_checkpoint", "etl_steps", "etl_wal", "node_output", "run_state", "stage_state"]
"""Tables with one row per stage."""
OTHERS = {
    # One row for the start of a stage and one for its successful end.
    "stage_audit": 2 * STAGES,
    "catalog_summaries": 5,
    "nodd_wal_transitions": 3,
    # Totals of a dataset: each status of the unit; the message; the result of each of four operators; bytes; latency,
    # as class and sum; time of the write, as class and sum; energy and carbon; the outcome of each stage.
    "metric_totals": 3 + 1 + 4 + 1 + 2 + 2 + 2 + STAGES,
    "lineage_batches": 2,
    "lineage_emissions": 2,
    "catalog_changes": 1,
    "catalog_collections": 1,
    "catalog_items": 1,
    "catalog_pages": 1,
    "catalog_promotions": 1,
    "nodd_wal_deliveries": 1,
    "nodd_wal_delivery_units": 1,
    "nodd_wal_leases": 1,
    "nodd_wal_outcomes": 1,
    "nodd_wal_records": 1,
    # One row per product.
    "nodd_feeds": 1,
    # One row per product and month.
    "size_peers": 1,
}


def rows(pipeline: Pipeline) -> Counter[str]:
    """Count the rows of each table."""
    with pipeline.database.engine.connect() as connection:
        names = sa.inspect(connection).get_table_names()
        counts = {name: sa.select(sa.func.count()).select_from(sa.table(name)) for name in names}
        return Counter({name: connection.execute(count).scalar_one() for name, count in counts.items()})


def test_an_ingested_unit_adds_exactly_the_expected_rows(make_pipeline: Callable[..., Pipeline]) -> None:
    pipeline = make_pipeline()
    before = rows(pipeline)
    deliver(pipeline, *volumes(1))
    run_pending(pipeline, "run")
    assert rows(pipeline) - before == Counter(dict.fromkeys(BY_STAGE, STAGES) | OTHERS)
