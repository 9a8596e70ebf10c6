"""Withdrawing lineage: nothing published goes, the view is what it was before, and a retry is published again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.contracts.envelope import ProvenanceStatus
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.lineage.store import Lineage, Link
from kfm_dagster.lineage.unit import IngestRun, LineageUnit
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.fence import open_fence
from kfm_dagster_tests.lineage.prov_json import prov_json
from kfm_dagster_tests.lineage.schemas import facets, validate
from kfm_dagster_tests.lineage.units import ingest_run, superseded, units
from kfm_dagster_tests.moments import dying
from kfm_dagster_tests.transactions import own_tx

AT = datetime(2025, 12, 3, 0, 30, tzinfo=UTC)
pytestmark = [
    # rdflib 7.6 uses deprecated classes and properties of its own when it reads JSON-LD.
    pytest.mark.filterwarnings("ignore:ConjunctiveGraph is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Dataset.[a-z_]+ is deprecated:DeprecationWarning"),
]


@pytest.fixture
def lineage(database: Database, root: Path) -> Lineage:
    return Lineage(database, str(root), clock=lambda: AT)


def run(name: str) -> IngestRun:
    return replace(ingest_run(), run_id=name)


def files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and ".staging" not in path.parts
    }


def view(lineage: Lineage, batch: Sequence[LineageUnit]) -> list[Link]:
    return [link for unit in batch for link in lineage.links_of(unit.wal_id)]


def events(root: Path) -> list[dict[str, Any]]:
    found = sorted(root.glob("openlineage/**/*.ndjson"))
    return [json.loads(line) for path in found for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.clause("PCS-03")
def test_a_withdrawn_run_leaves_the_view_as_it_was_and_every_file_as_it_was_told(
    lineage: Lineage, root: Path, contract: DatasetContract
) -> None:
    everyone = units(0, 6)
    lineage.emit(units(0, 3), run=run("before"), contract=contract, fence=open_fence)
    standing, written = view(lineage, everyone), files(root)
    lineage.emit(units(2, 6), run=run("undone"), contract=contract, fence=open_fence)
    told = files(root)
    [activity] = {link.lineage_id for link in lineage.links_of(everyone[5].wal_id) if link.path == "prov"}
    assert own_tx(lineage).invalidate(run_id="undone", contract=contract, reason="S1") == 3
    assert view(lineage, everyone) == standing
    withdrawn = lineage.find(activity)
    assert withdrawn is not None
    assert (withdrawn.wal_id, withdrawn.invalidated_at) == (everyone[5].wal_id, AT)
    after = files(root)
    assert written.items() <= told.items() <= after.items()
    added = {Path(name).suffix: content for name, content in after.items() if name not in told}
    assert set(added) == {".jsonld", ".ndjson"}
    [rollback] = [node for node in json.loads(added[".jsonld"])["@graph"] if "kfm:Rollback" in node["type"]]
    assert rollback["startedAtTime"] == rollback["endedAtTime"] == rfc3339(AT)
    assert own_tx(lineage).invalidate(run_id="undone", contract=contract, reason="S1") == 0
    assert files(root) == after
    assert lineage.undelivered().files.batches == 0


@pytest.mark.clause("PCS-03")
def test_only_the_runs_lineage_of_the_dataset_is_withdrawn(
    lineage: Lineage, contract: DatasetContract, contracts: ContractRegistry
) -> None:
    lineage.emit(units(0, 1), run=run("mine"), contract=contract, fence=open_fence)
    lineage.emit(units(1, 2), run=run("another"), contract=contract, fence=open_fence)
    standing = view(lineage, units(0, 2))
    assert own_tx(lineage).invalidate(run_id="mine", contract=contracts["nexrad-l2"], reason="S1") == 0
    assert view(lineage, units(0, 2)) == standing
    assert own_tx(lineage).invalidate(run_id="mine", contract=contract, reason="S1") == 1
    assert view(lineage, units(0, 2)) == view(lineage, units(1, 2)) == standing[2:]


@pytest.mark.clause("PCS-03", "RPL-05")
def test_a_unit_that_is_emitted_again_is_told_as_a_further_edition_each_time(
    lineage: Lineage, root: Path, contract: DatasetContract
) -> None:
    batch = units(0, 2)
    ids: set[str] = set()
    for revision in ("", "run", "run.2", "run.3"):
        results = [lineage.emit(batch, run=run("run"), contract=contract, fence=open_fence) for _attempt in range(2)]
        assert results[0] == results[1]
        assert {result.status for result in results[0].values()} == {ProvenanceStatus.OK}
        links = view(lineage, batch)
        assert [link.revision for link in links] == [revision] * 4
        assert ids.isdisjoint(link.lineage_id for link in links)
        ids |= {link.lineage_id for link in links}
        assert own_tx(lineage).invalidate(run_id="run", contract=contract, reason="S1") == 2
    kinds = [(event["eventType"], event["run"]["runId"]) for event in events(root)]
    assert len(kinds) == len(set(kinds)) == 3 * 2 * 4


@pytest.mark.clause("PCS-03")
def test_what_is_told_of_a_withdrawal_keeps_to_the_official_schemas(
    lineage: Lineage, root: Path, contract: DatasetContract, official: dict[str, Any]
) -> None:
    lineage.emit(units(0, 1), run=run("run"), contract=contract, fence=open_fence)
    own_tx(lineage).invalidate(run_id="run", contract=contract, reason="S1: 3 units without a unit")
    lineage.emit(units(0, 1), run=run("run"), contract=contract, fence=open_fence)
    own_tx(lineage).invalidate(run_id="run", contract=contract, reason="S1")
    others = [event for event in events(root) if event["eventType"] == "OTHER"]
    assert len(others) == 2
    for event in others:
        validate(event["schemaURL"], event, official)
        for facet in facets(event).values():
            validate(facet["_schemaURL"], facet, official)
    completed = {event["run"]["runId"]: event["job"] for event in events(root) if event["eventType"] == "COMPLETE"}
    assert {event["run"]["runId"]: event["job"] for event in others} == completed


@pytest.mark.clause("PCS-03")
def test_prov_says_by_what_and_when_each_generated_entity_was_invalidated(
    lineage: Lineage, root: Path, contract: DatasetContract
) -> None:
    import rdflib
    from rdflib import PROV

    batch = [*units(0, 1), LineageUnit.of(superseded(1, by=0))]
    lineage.emit(batch, run=run("run"), contract=contract, fence=open_fence)
    own_tx(lineage).invalidate(run_id="run", contract=contract, reason="S1")
    graph = rdflib.Graph()
    invalidated = set()
    for path in root.glob("prov/**/*.jsonld"):
        graph.parse(path, format="json-ld")
        relations = prov_json(path.read_bytes()).get("wasInvalidatedBy", {})
        invalidated |= {rdflib.URIRef(relation["prov:entity"]) for relation in relations.values()}
    generated = set(graph.subjects(PROV.wasGeneratedBy))
    assert invalidated == generated
    assert generated == set(graph.subjects(PROV.wasInvalidatedBy)) == set(graph.subjects(PROV.invalidatedAtTime))
    # The superseded unit's Item never stood, so nothing invalidated it.
    assert len(generated) == 3
    [activity] = set(graph.objects(predicate=PROV.wasInvalidatedBy))
    assert (activity, rdflib.RDF.type, PROV.Activity) in graph
    assert {time.toPython() for time in graph.objects(predicate=PROV.invalidatedAtTime)} == {AT}


@pytest.mark.clause("PCS-03")
def test_a_withdrawal_that_dies_anywhere_is_told_once(
    database: Database, lineage: Lineage, root: Path, contract: DatasetContract
) -> None:
    for at in count(1):
        name, batch = f"run-{at}", units(2 * at, 2 * at + 2)
        lineage.emit(batch, run=run(name), contract=contract, fence=open_fence)
        with dying(database, at=at) as death:
            own_tx(lineage).invalidate(run_id=name, contract=contract, reason="S1")
        own_tx(lineage).invalidate(run_id=name, contract=contract, reason="S1")
        lineage.publish_staged()
        assert view(lineage, batch) == []
        facets = (event["run"]["facets"] for event in events(root))
        told = [one for one in facets if one.get("kfmInvalidation", {}).get("run_id") == name]
        assert len(told) == 2, death
        if not death.died:
            break
    assert at > 15
