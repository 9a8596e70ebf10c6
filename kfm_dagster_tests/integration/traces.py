"""Comparable results of runs: ledger rows, the catalog's tree, lineage.

Run ids, times and attempts can differ although two ways lead to the same outcome, so they are not compared.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.storage.publisher import STAGING
from kfm_dagster_tests.catalog import trees
from kfm_dagster_tests.transactions import own_tx

OUTCOME = (
    "status", "last_error_code", "integrity_status", "metadata_status", "provenance_status", "stac_item_id",
    "stac_collection_id", "stac_item_href",
)  # fmt: skip
"""Fields that must be equal for every way to an outcome; `stac_status` (created or no-op) can differ."""


def records(pipeline: Pipeline) -> dict[str, NoddWalRecord]:
    """Return every ledger record by object URI."""
    return {record.object_uri: record for record in own_tx(pipeline.ledger).find(limit=10_000)}


def outcomes(pipeline: Pipeline) -> dict[str, dict[str, Any]]:
    """Return the outcome of every object."""
    return {uri: {name: getattr(record, name) for name in OUTCOME} for uri, record in sorted(records(pipeline).items())}


def statuses(pipeline: Pipeline) -> Counter[str]:
    """Count the units of each status."""
    return Counter(record.status.value for record in records(pipeline).values())


def items(catalog: Path) -> dict[str, dict[str, Any]]:
    """Return a catalog's Items by href of their data; check that each is linked once."""
    features = [document for document in trees.walk(catalog).values() if document["type"] == "Feature"]
    by_object = {document["assets"]["data"]["href"]: document for document in features}
    assert len(by_object) == len(features)
    return by_object


def catalog_items(pipeline: Pipeline) -> dict[str, dict[str, Any]]:
    """Return the Items of a pipeline's catalog by href of their data."""
    return items(Path(pipeline.settings.catalog))


def catalog_tree(catalog: Path) -> dict[str, Any]:
    """Return the published files without run ids in Items and Collections; check the links."""
    if not (catalog / "catalog.json").exists():
        return {}
    trees.assert_consistent(catalog)
    assert not list((catalog / STAGING).iterdir())
    documents = trees.walk(catalog)
    for document in documents.values():
        for holder in (document, document.get("properties", {})):
            holder.pop("kfm:run_state", None)
    return documents


def events(lineage: Path) -> Counter[tuple[str, str, str, str]]:
    """Count the published events by (event type, run id, input, Item)."""
    counts: Counter[tuple[str, str, str, str]] = Counter()
    for path in lineage.glob("openlineage/**/*.ndjson"):
        for line in path.read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            locations = [
                output["outputFacets"]["subset"]["outputCondition"]["locations"][0] for output in event["outputs"]
            ] or [""]
            [source] = event["inputs"]
            counts[
                event["eventType"], event["run"]["runId"], f"{source['namespace']}/{source['name']}", *locations
            ] += 1
    return counts


def prov_edges(lineage: Path) -> Counter[tuple[str, str, str]]:
    """Count the edges of units in the published PROV documents, without the edges of agents.

    The edge of a message occurs once for each object that it announced.
    """
    counts: Counter[tuple[str, str, str]] = Counter()
    for path in lineage.glob("prov/**/*.jsonld"):
        for node in json.loads(path.read_text(encoding="utf-8"))["@graph"]:
            if "Agent" in json.dumps(node["type"]):
                continue
            for name, value in node.items():
                targets = value if isinstance(value, list) else [value]
                for target in targets:
                    if name not in {"id", "type"} and str(target).startswith("urn:uuid:"):
                        counts[node["id"], name, target] += 1
    return counts


def audited(pipeline: Pipeline, kind: str) -> list[dict[str, Any]]:
    """Return the audit's lines of a kind."""
    return [line for line in pipeline.stages.lifecycle.store.audit.lines() if line["kind"] == kind]


def assert_once(counted: Counter[Any]) -> None:
    """Check that nothing is counted twice."""
    assert {key: count for key, count in counted.items() if count > 1} == {}


def published_once(pipeline: Pipeline) -> tuple[Counter[tuple[str, str, str, str]], Counter[tuple[str, str, str]]]:
    """Return the published events and PROV edges, after checking that none is duplicated."""
    lineage = Path(pipeline.settings.lineage)
    published, edges = events(lineage), prov_edges(lineage)
    assert_once(published)
    assert_once(edges)
    return published, edges


def everything(pipeline: Pipeline) -> dict[str, Any]:
    """Return ledger, catalog, events and edges, to compare two ways to one outcome."""
    published, edges = published_once(pipeline)
    catalog = catalog_tree(Path(pipeline.settings.catalog))
    return {"ledger": outcomes(pipeline), "catalog": catalog, "events": published, "edges": edges}


def without(unit: Envelope, *names: str) -> Envelope:
    """Return the unit without some of its sections."""
    return unit.evolve(**dict.fromkeys(names))
