"""Validation of OpenLineage events and facets, offline."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs

from kfm_dagster.lineage.openlineage import Event


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
