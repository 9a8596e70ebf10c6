"""Validation of OpenLineage events and facets, offline, and the PROV-JSON of a PROV document."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs

from kfm_dagster.lineage.openlineage import Event

OFFICIAL = "https://openlineage.io/spec/2-0-2/OpenLineage.json"


def facets(event: Event) -> dict[str, dict[str, Any]]:
    holders = [event["run"], event["job"], *event["inputs"], *event["outputs"]]
    return {
        name: facet
        for holder in holders
        for field in ("facets", "inputFacets", "outputFacets")
        for name, facet in holder.get(field, {}).items()
    }


def validate(schema_url: str, instance: Any, all_schemas: dict[str, Any]) -> None:
    registry = jsonschema_rs.Registry(list(all_schemas.items()))
    validator = jsonschema_rs.validator_for(
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "$ref": schema_url},
        registry=registry,
        validate_formats=True,
    )
    validator.validate(json.loads(json.dumps(instance)))


def validate_event(event: Event, all_schemas: dict[str, Any]) -> None:
    """Validate an event by the whole specification, and event and facets by the schemas that they name."""
    validate(OFFICIAL, event, all_schemas)
    validate(event["schemaURL"], event, all_schemas)
    for facet in facets(event).values():
        validate(facet["_schemaURL"], facet, all_schemas)


def prov_json(document: bytes) -> dict[str, Any]:
    """Convert a JSON-LD document by the package prov, and check that the PROV-JSON can be read again."""
    import prov.model

    text = prov.model.ProvDocument.deserialize(content=document.decode(), format="rdf", rdf_format="json-ld").serialize(
        format="json"
    )
    assert prov.model.ProvDocument.deserialize(content=text, format="json").get_records()
    converted: dict[str, Any] = json.loads(text)
    return converted
