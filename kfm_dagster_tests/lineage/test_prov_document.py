"""PROV documents, read by rdflib and prov; the invalidation of lineage, which keeps the published files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import rdflib
from rdflib.namespace import RDF, XSD

from kfm_dagster.contracts.envelope import ProvenanceStatus, RawReference
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.lineage.prov import CONTEXT, OPERATOR, SERVICE, producer_ids, prov_document, prov_line
from kfm_dagster.lineage.store import Lineage, Link
from kfm_dagster.lineage.unit import IngestRun, LineageUnit, agent_id
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.fence import open_fence
from kfm_dagster_tests.lineage.conftest import NOON
from kfm_dagster_tests.lineage.schemas import prov_json, validate_event
from kfm_dagster_tests.lineage.test_lineage_store import files
from kfm_dagster_tests.lineage.units import RUN_ID, ingest_run, registered, repaired, superseded, units
from kfm_dagster_tests.moments import deaths, dying
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.one_database

PROV = "http://www.w3.org/ns/prov#"
KFM = "https://kfm.dev/ns/nodd#"
PRODUCER = agent_id("NOAA NESDIS")


def document(batch: list[LineageUnit], contract: DatasetContract) -> bytes:
    return prov_document([prov_line(unit, ingest_run(), producer_ids(contract)) for unit in batch], contract)


def graph(document: bytes) -> Any:
    return rdflib.Graph().parse(data=document.decode(), format="json-ld")


def relations(document: bytes) -> set[tuple[str, str, str]]:
    """Return the triples (subject, PROV relation, object) between nodes with ids."""
    return {
        (str(subject), str(predicate).removeprefix(PROV), str(target))
        for subject, predicate, target in graph(document)
        if str(predicate).startswith(PROV) and isinstance(target, rdflib.URIRef)
    }


@pytest.mark.clause("OPR-12")
def test_rdf_links_notification_message_object_item_report_activity_and_agents(contract: DatasetContract) -> None:
    unit = LineageUnit.of(registered())
    assert relations(document([unit], contract)) == {
        (unit.activity_id, "used", unit.object_id),
        (unit.activity_id, "used", unit.message_id),
        (unit.activity_id, "wasAssociatedWith", SERVICE),
        (unit.activity_id, "wasAssociatedWith", OPERATOR),
        (unit.message_id, "wasDerivedFrom", unit.notification_id),
        (unit.notification_id, "wasDerivedFrom", unit.object_id),
        (unit.object_id, "wasAttributedTo", PRODUCER),
        (unit.qc_report_id, "wasGeneratedBy", unit.activity_id),
        (unit.qc_report_id, "wasDerivedFrom", unit.object_id),
        (unit.qc_report_id, "wasAttributedTo", SERVICE),
        (unit.item_id, "wasGeneratedBy", unit.activity_id),
        (unit.item_id, "wasDerivedFrom", unit.object_id),
        (unit.item_id, "wasDerivedFrom", unit.qc_report_id),
        (unit.item_id, "wasAttributedTo", OPERATOR),
        (OPERATOR, "actedOnBehalfOf", SERVICE),
    }


def test_rdf_has_the_unit_s_types_times_and_facts(contract: DatasetContract) -> None:
    unit = LineageUnit.of(registered())
    rdf = graph(document([unit], contract))
    activity, item, report = (rdflib.URIRef(name) for name in (unit.activity_id, unit.item_id, unit.qc_report_id))
    prov, kfm = rdflib.Namespace(PROV), rdflib.Namespace(KFM)
    assert set(rdf.objects(activity, RDF.type)) == {prov.Activity, kfm.Ingest}
    assert set(rdf.objects(item, RDF.type)) == {prov.Entity, kfm.StacItem}
    assert rdf.value(activity, prov.startedAtTime) == rdflib.Literal("2025-12-03T00:04:00Z", datatype=XSD.dateTime)
    assert rdf.value(activity, prov.endedAtTime) == rdflib.Literal("2025-12-03T00:05:00Z", datatype=XSD.dateTime)
    facts = {
        (activity, kfm.wal_id): unit.wal_id,
        (activity, kfm.run_id): RUN_ID,
        (activity, kfm.openlineage_run_id): unit.openlineage_run_id,
        (rdflib.URIRef(unit.object_id), kfm.object_uri): unit.envelope.object_uri,
        (rdflib.URIRef(str(unit.notification_id)), kfm.sns_message_id): unit.envelope.raw.sns_message_id,
        (rdflib.URIRef(str(unit.message_id)), kfm.sqs_message_id): unit.envelope.raw.sqs_message_id,
        (item, kfm.stac_item_id): "scan-0",
        (item, kfm.dataset_id): "goes-abi.stac_register",
        (report, kfm.integrity_status): "ok",
        (report, kfm.metadata_status): "suspect",
        (report, kfm.issue): "time_mismatch",
    }
    assert {subject_and_name: str(rdf.value(*subject_and_name)) for subject_and_name in facts} == facts


def test_a_document_links_the_message_and_the_notification_only_if_the_unit_has_them(contract: DatasetContract) -> None:
    for raw in [RawReference(), RawReference(sqs_message_id="m"), RawReference(sns_message_id="n")]:
        unit = LineageUnit.of(registered(raw=raw))
        triples = relations(document([unit], contract))
        linked = {end for subject, _, target in triples for end in (subject, target) if end.startswith("urn:uuid:")}
        entities = 3 + sum(1 for name in (raw.sqs_message_id, raw.sns_message_id) if name)
        assert linked == {unit.activity_id, *unit.entity_ids, SERVICE, OPERATOR, PRODUCER}
        assert len(unit.entity_ids) == entities


@pytest.mark.clause("OPR-12")
def test_a_message_of_two_objects_derives_from_its_notification_once(contract: DatasetContract) -> None:
    first = LineageUnit.of(registered())
    second = LineageUnit.of(registered(1, raw=first.envelope.raw))
    derivations = prov_json(document([first, second], contract))["wasDerivedFrom"].values()
    edges = [(edge["prov:generatedEntity"], edge["prov:usedEntity"]) for edge in derivations]
    message, notification = first.message_id, first.notification_id
    assert edges.count((message, notification)) == 1
    assert {used for generated, used in edges if generated == notification} == {first.object_id, second.object_id}


@pytest.mark.clause("OPR-12", "RPL-05", "BEY-01")
def test_a_replayed_and_a_superseded_unit_keep_their_facts_and_prov_json_keeps_every_relation(
    contract: DatasetContract,
) -> None:
    batch = [
        *units(0, 3),
        LineageUnit.of(repaired("replay-1"), revision="replay-1", revises=units(0, 1)[0].item_id),
        LineageUnit.of(superseded(4, by=2), yields_to=units(2, 3)[0].item_id),
    ]
    batch_document = document(batch, contract)
    converted = prov_json(batch_document)
    assert converted.keys() == {
        "prefix", "entity", "activity", "agent", "used", "wasGeneratedBy", "wasDerivedFrom", "alternateOf",
        "wasAssociatedWith", "wasAttributedTo", "actedOnBehalfOf",
    }  # fmt: skip
    nodes = {node["id"]: node for node in json.loads(batch_document)["@graph"]}
    assert converted["entity"].keys() | converted["activity"].keys() | converted["agent"].keys() == nodes.keys()
    ends = {
        "used": ("prov:activity", "prov:entity"),
        "wasGeneratedBy": ("prov:entity", "prov:activity"),
        "wasDerivedFrom": ("prov:generatedEntity", "prov:usedEntity"),
        "alternateOf": ("prov:alternate1", "prov:alternate2"),
        "wasAssociatedWith": ("prov:activity", "prov:agent"),
        "wasAttributedTo": ("prov:entity", "prov:agent"),
        "actedOnBehalfOf": ("prov:delegate", "prov:responsible"),
    }
    related = {
        (relation[subject], name, relation[target])
        for name, (subject, target) in ends.items()
        for relation in converted[name].values()
    }
    # `prov` turns wasRevisionOf into an attribute of the entity, not into a relation.
    assert related == {edge for edge in relations(batch_document) if edge[1] in ends}
    assert converted["entity"][batch[3].item_id]["prov:wasRevisionOf"]["$"] == batch[0].item_id
    replay = {"kfm:replay_run_id": "replay-1", "kfm:replayReason": "incident", "kfm:revision": "replay-1"}
    assert replay.items() <= nodes[batch[3].activity_id].items()
    # The late unit's Item never became current.
    late = nodes[batch[4].item_id]
    assert (late["kfm:superseded"], late["alternateOf"]) == (True, batch[2].item_id)
    assert not {"wasGeneratedBy", "kfm:content_sha256", "kfm:stac_item_href"} & late.keys()


def test_the_same_batch_gives_the_same_bytes_and_needs_no_network_to_read(contract: DatasetContract) -> None:
    first, second = (document(units(0, 3), contract) for _ in range(2))
    assert first == second
    context = json.loads(first)["@context"]
    assert context == CONTEXT
    assert isinstance(context, dict)  # a string would be fetched as a URL


def run(name: str) -> IngestRun:
    return replace(ingest_run(), run_id=name)


def view(lineage: Lineage, batch: Sequence[LineageUnit]) -> list[Link]:
    return [link for unit in batch for link in lineage.links_of(unit.wal_id)]


def events(root: Path) -> list[dict[str, Any]]:
    paths = sorted(root.glob("openlineage/**/*.ndjson"))
    return [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.clause("PCS-03")
def test_invalidating_a_run_restores_the_earlier_links_and_changes_no_published_file(
    lineage: Lineage, root: Path, contract: DatasetContract, contracts: ContractRegistry
) -> None:
    everyone = units(0, 6)
    lineage.emit(units(0, 3), run=run("before"), contract=contract, fence=open_fence)
    published, written = view(lineage, everyone), files(root)
    lineage.emit(units(2, 6), run=run("undone"), contract=contract, fence=open_fence)
    before = files(root)
    [activity] = {link.lineage_id for link in lineage.links_of(everyone[5].wal_id) if link.path == "prov"}
    assert own_tx(lineage).invalidate(run_id="undone", contract=contracts["nexrad-l2"], reason="S1") == 0
    assert own_tx(lineage).invalidate(run_id="undone", contract=contract, reason="S1") == 3
    assert view(lineage, everyone) == published
    withdrawn = lineage.find(activity)
    assert (withdrawn.wal_id, withdrawn.invalidated_at) == (everyone[5].wal_id, NOON)
    after = files(root)
    assert written.items() <= before.items() <= after.items()
    added = {Path(name).suffix: content for name, content in after.items() if name not in before}
    assert set(added) == {".jsonld", ".ndjson"}
    [rollback] = [node for node in json.loads(added[".jsonld"])["@graph"] if "kfm:Rollback" in node["type"]]
    assert rollback["startedAtTime"] == rollback["endedAtTime"] == rfc3339(NOON)
    assert own_tx(lineage).invalidate(run_id="undone", contract=contract, reason="S1") == 0
    assert files(root) == after
    assert lineage.undelivered().files.batches == 0


@pytest.mark.clause("PCS-03", "RPL-05")
def test_a_unit_emitted_again_after_an_invalidation_gets_a_new_revision(
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
def test_events_of_an_invalidation_are_valid_by_the_official_schemas(
    lineage: Lineage, root: Path, contract: DatasetContract, official: dict[str, Any]
) -> None:
    lineage.emit(units(0, 1), run=run("run"), contract=contract, fence=open_fence)
    own_tx(lineage).invalidate(run_id="run", contract=contract, reason="S1: 3 quantities without a unit of measurement")
    lineage.emit(units(0, 1), run=run("run"), contract=contract, fence=open_fence)
    own_tx(lineage).invalidate(run_id="run", contract=contract, reason="S1")
    others = [event for event in events(root) if event["eventType"] == "OTHER"]
    assert len(others) == 2
    for event in others:
        validate_event(event, official)
    completed = {event["run"]["runId"]: event["job"] for event in events(root) if event["eventType"] == "COMPLETE"}
    assert {event["run"]["runId"]: event["job"] for event in others} == completed


@pytest.mark.clause("PCS-03")
def test_prov_has_activity_and_time_of_each_invalidation(
    lineage: Lineage, root: Path, contract: DatasetContract
) -> None:
    batch = [*units(0, 1), LineageUnit.of(superseded(1, by=0))]
    lineage.emit(batch, run=run("run"), contract=contract, fence=open_fence)
    own_tx(lineage).invalidate(run_id="run", contract=contract, reason="S1")
    graph = rdflib.Graph()
    invalidated = set()
    for path in root.glob("prov/**/*.jsonld"):
        graph.parse(path, format="json-ld")
        relations = prov_json(path.read_bytes()).get("wasInvalidatedBy", {})
        invalidated |= {rdflib.URIRef(relation["prov:entity"]) for relation in relations.values()}
    generated = set(graph.subjects(rdflib.PROV.wasGeneratedBy))
    assert invalidated == generated
    assert (
        generated
        == set(graph.subjects(rdflib.PROV.wasInvalidatedBy))
        == set(graph.subjects(rdflib.PROV.invalidatedAtTime))
    )
    # The superseded unit's Item was never in the catalog, so it is not invalidated.
    assert len(generated) == 3
    [activity] = set(graph.objects(predicate=rdflib.PROV.wasInvalidatedBy))
    assert (activity, rdflib.RDF.type, rdflib.PROV.Activity) in graph
    assert {time.toPython() for time in graph.objects(predicate=rdflib.PROV.invalidatedAtTime)} == {NOON}


@pytest.mark.clause("PCS-03")
def test_an_invalidation_that_dies_at_any_point_is_published_once(
    database: Database, lineage: Lineage, root: Path, contract: DatasetContract
) -> None:
    for at, death in deaths():
        name, batch = f"run-{at}", units(2 * at, 2 * at + 2)
        lineage.emit(batch, run=run(name), contract=contract, fence=open_fence)
        with dying(database, at=death):
            own_tx(lineage).invalidate(run_id=name, contract=contract, reason="S1")
        own_tx(lineage).invalidate(run_id=name, contract=contract, reason="S1")
        lineage.publish_staged()
        assert view(lineage, batch) == []
        facets = (event["run"]["facets"] for event in events(root))
        invalidations = [facet for facet in facets if facet.get("kfmInvalidation", {}).get("run_id") == name]
        assert len(invalidations) == 2, death
    assert at > 15
