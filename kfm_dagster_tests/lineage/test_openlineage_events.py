"""OpenLineage events against the official schemas and ours."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from kfm_dagster.contracts.envelope import RawReference, StacResult, StacStatus
from kfm_dagster.lineage.openlineage import Event, openlineage_events, openlineage_lines
from kfm_dagster.lineage.unit import LineageUnit
from kfm_dagster_tests.lineage.units import ingest_run, registered

SPEC = Path(__file__).resolve().parents[2] / "docs" / "spec"
OFFICIAL = "https://openlineage.io/spec/2-0-2/OpenLineage.json"

CASES = {
    "from a message": registered(),
    "from a listing": registered(raw=RawReference(), object_size=None, integrity=None, metadata=None, attempt=0),
    "without a version": registered(object_version=None),
    "a key with a space": registered(object_uri="s3://noaa-goes19/a b/ä+%.nc"),
}


def events_of(name: str) -> tuple[Event, Event]:
    return openlineage_events(LineageUnit.of(CASES[name]), ingest_run())


@pytest.fixture(scope="module")
def schemas() -> dict[str, Any]:
    """Our published facet schemas by `$id`."""
    loaded = [json.loads(path.read_text(encoding="utf-8")) for path in SPEC.glob("kfm-*-facet.schema.json")]
    return {schema["$id"]: schema for schema in loaded}


@pytest.fixture(scope="module")
def official(shared_data: Path, schemas: dict[str, Any]) -> dict[str, Any]:
    """The official schemas and ours by `$id`."""
    files = (shared_data / "schemas" / "openlineage").rglob("*.json")
    loaded = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    return {schema["$id"]: schema for schema in loaded} | schemas


def facets(event: Event) -> dict[str, dict[str, Any]]:
    holders = [event["run"], event["job"], *event["inputs"], *event["outputs"]]
    return {
        name: facet
        for holder in holders
        for field in ("facets", "inputFacets", "outputFacets")
        for name, facet in holder.get(field, {}).items()
    }


def validate(schema_url: str, instance: Any, known: dict[str, Any]) -> None:
    registry = jsonschema_rs.Registry(list(known.items()))
    validator = jsonschema_rs.validator_for(
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "$ref": schema_url},
        registry=registry,
        validate_formats=True,
    )
    validator.validate(json.loads(json.dumps(instance)))


@pytest.mark.clause("OPR-12")
@pytest.mark.parametrize("name", CASES)
def test_every_event_and_facet_fits_the_official_schema_that_it_names(name: str, official: dict[str, Any]) -> None:
    for event in events_of(name):
        validate(OFFICIAL, event, official)
        validate(event["schemaURL"], event, official)
        for facet in facets(event).values():
            validate(facet["_schemaURL"], facet, official)


@pytest.mark.parametrize("name", CASES)
def test_our_facets_fit_the_schemas_that_are_published(name: str, schemas: dict[str, Any]) -> None:
    start, complete = events_of(name)
    ours = [
        facet for event in (start, complete) for facet in facets(event).values() if "kfm.dev" in facet["_schemaURL"]
    ]
    assert len(ours) == 3  # kfmWal twice, kfmRunState once
    for facet in ours:
        validate(facet["_schemaURL"], facet, schemas)


@pytest.mark.parametrize("field", ["wal_id", "attempt", "prov_activity_id", "_producer"])
def test_the_wal_facet_schema_refuses_a_facet_without(field: str, schemas: dict[str, Any]) -> None:
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
    found = facets(complete)
    assert found["subset"]["outputCondition"]["locations"] == ["goes-abi/2025/2025-12-03/scan-0.json"]
    assert found["version"]["datasetVersion"] == unit.envelope.object_version
    assert found["inputStatistics"]["size"] == 20_971_521  # as integrity-check saw it, not as announced
    assert found["kfmWal"]["wal_id"] == unit.wal_id
    assert found["kfmWal"]["prov_activity_id"] == unit.activity_id
    assert found["kfmRunState"] | {"_producer": "", "_schemaURL": ""} == {
        "_producer": "",
        "_schemaURL": "",
        "dataset_id": "goes-abi.stac_register",
        "run_id": ingest_run().run_id,
        "outcome": "success",
    }


def test_the_same_unit_and_run_give_the_same_bytes() -> None:
    one, other = (openlineage_lines(LineageUnit.of(registered()), ingest_run()) for _ in range(2))
    assert one == other
    assert one.count(b"\n") == 2


@pytest.mark.parametrize("stac", [None, StacResult(write_status=StacStatus.FAILED)])
def test_a_unit_without_a_registered_item_has_no_lineage(stac: StacResult | None) -> None:
    with pytest.raises(ValueError, match="no registered STAC Item"):
        LineageUnit.of(registered(stac=stac))


def test_ids_depend_on_stable_fields_only() -> None:
    first = LineageUnit.of(registered())
    again = LineageUnit.of(registered(attempt=4, queue="kfm-nodd-dlq", object_size=None))
    other_version = LineageUnit.of(registered(1))
    assert (first.openlineage_run_id, first.activity_id, first.entity_ids) == (
        again.openlineage_run_id,
        again.activity_id,
        again.entity_ids,
    )
    assert not {first.openlineage_run_id, first.activity_id, *first.entity_ids} & {
        other_version.openlineage_run_id,
        other_version.activity_id,
        *other_version.entity_ids,
    }
    assert len(set(first.entity_ids)) == 5
