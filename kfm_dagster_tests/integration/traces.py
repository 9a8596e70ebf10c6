"""What runs left, in forms that can be compared: ledger rows, the catalog's tree, lineage.

Run ids, times and attempts differ between two ways to one outcome, so they are left out where a comparison is meant.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from kfm_dagster.catalog.publisher import STAGING
from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster_tests.catalog import trees
from kfm_dagster_tests.transactions import own_tx

OUTCOME = (
    "status", "last_error_code", "integrity_status", "metadata_status", "provenance_status", "stac_item_id",
    "stac_collection_id", "stac_item_href",
)  # fmt: skip
"""What must be the same whichever way a unit went. `stac_status` tells created from no-op, so it may differ."""
SECTIONS = ("integrity", "metadata", "stac", "provenance")


def records(pipeline: Pipeline) -> dict[str, NoddWalRecord]:
    """Every ledger record by object URI."""
    return {record.object_uri: record for record in own_tx(pipeline.ledger).find(limit=10_000)}


def outcomes(pipeline: Pipeline) -> dict[str, dict[str, Any]]:
    """What became of every object."""
    return {uri: {name: getattr(record, name) for name in OUTCOME} for uri, record in sorted(records(pipeline).items())}


def statuses(pipeline: Pipeline) -> Counter[str]:
    """How many units have each status."""
    return Counter(record.status.value for record in records(pipeline).values())


def items(catalog: Path) -> dict[str, dict[str, Any]]:
    """Items that a reader reaches, by href of their data; each is reached once."""
    found = [document for document in trees.walk(catalog).values() if document["type"] == "Feature"]
    by_object = {document["assets"]["data"]["href"]: document for document in found}
    assert len(by_object) == len(found)
    return by_object


def catalog_items(pipeline: Pipeline) -> dict[str, dict[str, Any]]:
    """The Items of a pipeline's catalog, by href of their data."""
    return items(Path(pipeline.settings.catalog))


def catalog_tree(catalog: Path) -> dict[str, Any]:
    """Every published file as JSON, without the runs that Items and Collections name; the tree must be consistent."""
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
    """How often (event type, run id, input, Item) stands in the published events."""
    found: Counter[tuple[str, str, str, str]] = Counter()
    for path in lineage.glob("openlineage/**/*.ndjson"):
        for line in path.read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            locations = [
                output["outputFacets"]["subset"]["outputCondition"]["locations"][0] for output in event["outputs"]
            ] or [""]
            [source] = event["inputs"]
            found[event["eventType"], event["run"]["runId"], f"{source['namespace']}/{source['name']}", *locations] += 1
    return found


def prov_edges(lineage: Path) -> Counter[tuple[str, str, str]]:
    """How often each edge of a unit stands in the published PROV documents; edges between agents head each document.

    The edge of a message stands there once for each object that it announced.
    """
    found: Counter[tuple[str, str, str]] = Counter()
    for path in lineage.glob("prov/**/*.jsonld"):
        for node in json.loads(path.read_text(encoding="utf-8"))["@graph"]:
            if "Agent" in json.dumps(node["type"]):
                continue
            for name, value in node.items():
                targets = value if isinstance(value, list) else [value]
                for target in targets:
                    if name not in {"id", "type"} and str(target).startswith("urn:uuid:"):
                        found[node["id"], name, target] += 1
    return found


def audited(pipeline: Pipeline, kind: str) -> list[dict[str, Any]]:
    """The lines of a kind in the audit."""
    return [line for line in pipeline.stages.lifecycle.store.audit.lines() if line["kind"] == kind]


def assert_once(counted: Counter[Any]) -> None:
    """Nothing stands twice."""
    assert {key: count for key, count in counted.items() if count > 1} == {}


def told_once(pipeline: Pipeline) -> tuple[Counter[tuple[str, str, str, str]], Counter[tuple[str, str, str]]]:
    """The published events and edges of PROV; none of them stands twice."""
    lineage = Path(pipeline.settings.lineage)
    told, edges = events(lineage), prov_edges(lineage)
    assert_once(told)
    assert_once(edges)
    return told, edges


def everything(pipeline: Pipeline) -> dict[str, Any]:
    """What two ways to one outcome have in common: ledger, catalog, events and edges."""
    told, edges = told_once(pipeline)
    catalog = catalog_tree(Path(pipeline.settings.catalog))
    return {"ledger": outcomes(pipeline), "catalog": catalog, "events": told, "edges": edges}


def without(unit: Envelope, *names: str) -> Envelope:
    """The unit without some of its sections."""
    return unit.evolve(**dict.fromkeys(names))
