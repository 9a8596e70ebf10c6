"""OpenLineage events, validated by the official schemas and by the project's own."""

from __future__ import annotations

import uuid
from typing import Any

import jsonschema_rs
import pytest

from kfm_dagster.contracts.envelope import RawReference, StacResult, StacStatus
from kfm_dagster.lineage.openlineage import Event, event_lines, openlineage_events
from kfm_dagster.lineage.unit import FIRST_REVISION, LineageUnit, agent_id, invalidation_activity
from kfm_dagster_tests.lineage.schemas import facets, validate, validate_event
from kfm_dagster_tests.lineage.units import ingest_run, registered, repaired, superseded

CASES = {
    "from a message": registered(),
    "from a listing": registered(raw=RawReference(), object_size=None, integrity=None, metadata=None, attempt=0),
    "without a version": registered(object_version=None),
    "a replay": repaired("replay-1"),
    "after a newer unit": superseded(0, by=1),
    "a key with a space": registered(object_uri="s3://noaa-goes19/a b/ä+%.nc"),
}


def events_of(name: str) -> tuple[Event, Event]:
    revision = "replay-1" if name == "a replay" else FIRST_REVISION
    return openlineage_events(LineageUnit.of(CASES[name], revision=revision), ingest_run())


@pytest.mark.clause("OPR-12")
def test_every_event_and_facet_is_valid_by_its_official_schema(official: dict[str, Any]) -> None:
    for name in CASES:
        for event in events_of(name):
            validate_event(event, official)
        urls = [facet["_schemaURL"] for event in events_of(name) for facet in facets(event).values()]
        # The project's own facets: kfmWal twice, kfmRunState once.
        assert sum("kfm.dev" in url for url in urls) == 3


@pytest.mark.clause("RPL-05")
def test_both_events_of_a_replay_name_the_replay_and_events_of_a_first_ingest_name_none() -> None:
    for event in events_of("a replay"):
        named = {"replay_run_id": "replay-1", "replay_reason": "incident", "revision": "replay-1"}
        assert named.items() <= facets(event)["kfmWal"].items()
    for event in events_of("from a message"):
        assert not {"replay_run_id", "replay_reason", "revision", "superseded"} & facets(event)["kfmWal"].keys()


def test_a_superseded_unit_has_no_output_and_a_unit_without_an_item_no_lineage() -> None:
    _, complete = events_of("after a newer unit")
    assert complete["outputs"] == []
    wal_facet = facets(complete)["kfmWal"]
    assert (wal_facet["superseded"], wal_facet["superseded_by"]) == (True, registered(1).wal_id)
    for stac in [None, StacResult(write_status=StacStatus.FAILED)]:
        with pytest.raises(ValueError, match="no registered STAC Item"):
            LineageUnit.of(registered(stac=stac))


def test_the_wal_facet_schema_refuses_a_facet_without_a_required_field(schemas: dict[str, Any]) -> None:
    for field in ["wal_id", "attempt", "_producer"]:
        facet = facets(events_of("from a message")[0])["kfmWal"]
        del facet[field]
        with pytest.raises(jsonschema_rs.ValidationError, match=field):
            validate(facet["_schemaURL"], facet, schemas)


def test_events_name_the_job_the_object_the_collection_and_the_item() -> None:
    unit = LineageUnit.of(registered())
    start, complete = openlineage_events(unit, ingest_run())
    assert [start["eventType"], complete["eventType"]] == ["START", "COMPLETE"]
    assert start["eventTime"] < complete["eventTime"]
    assert start["job"] == complete["job"] == {"namespace": "kfm-nodd", "name": "kfm.nodd.ingest.goes-abi"}
    assert start["run"]["runId"] == complete["run"]["runId"] == str(uuid.UUID(unit.openlineage_run_id))
    for event in (start, complete):
        [data_object] = event["inputs"]
        assert data_object["namespace"] == "s3://noaa-goes19"
        assert data_object["name"] == unit.envelope.key
    [output] = complete["outputs"]
    assert (output["namespace"], output["name"]) == ("kfm-stac", "goes-abi")
    all_facets = facets(complete)
    assert all_facets["subset"]["outputCondition"]["locations"] == ["goes-abi/2025/2025-12-03/scan-0.json"]
    assert all_facets["version"]["datasetVersion"] == unit.envelope.object_version
    assert all_facets["inputStatistics"]["size"] == 20_971_521  # as measured by integrity-check, not as announced
    assert all_facets["kfmWal"]["wal_id"] == unit.wal_id
    assert all_facets["kfmWal"]["prov_activity_id"] == unit.activity_id
    assert {name: value for name, value in all_facets["kfmRunState"].items() if not name.startswith("_")} == {
        "dataset_id": "goes-abi.stac_register", "run_id": ingest_run().run_id, "outcome": "success",
    }  # fmt: skip
    # Equal unit and run give equal bytes.
    lines = event_lines((start, complete))
    assert lines == event_lines(openlineage_events(LineageUnit.of(registered()), ingest_run()))
    assert lines.count(b"\n") == 2


@pytest.mark.clause("RPL-05")
def test_ids_depend_only_on_stable_fields_and_a_new_revision_has_new_ids_for_its_outputs() -> None:
    first = LineageUnit.of(registered())
    retried = LineageUnit.of(registered(attempt=4, queue="kfm-nodd-dlq", object_size=None))
    # These ids are equal in every release.
    agents = (agent_id("NOAA NESDIS"), invalidation_activity("batch"))
    for unit in (first, retried):
        ids = (unit.openlineage_run_id, unit.activity_id, *unit.entity_ids, unit.masked_id, *agents)
        assert " ".join(name.removeprefix("urn:uuid:")[:8] for name in ids) == (
            "1c9f1959 fb658590 1721940e c250737b 7ba354c3 4901c13b c21dc548 d3c411ad 487cdbfb 30a20093"
        )
    of_listing = LineageUnit.of(CASES["from a listing"])
    assert (of_listing.notification_id, of_listing.message_id) == (None, None)
    second = LineageUnit.of(registered(), revision="replay-1")
    unit_ids = [
        (unit.openlineage_run_id, unit.activity_id, unit.item_id, unit.qc_report_id) for unit in (first, second)
    ]
    assert not set(unit_ids[0]) & set(unit_ids[1])
    used = [(unit.object_id, unit.notification_id, unit.message_id) for unit in (first, second)]
    assert used[0] == used[1]
