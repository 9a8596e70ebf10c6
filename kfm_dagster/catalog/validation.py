"""Validate STAC documents offline, by STAC 1.1 core and the KFM profile.

pystac contains the core schemas. The profile is `kfm-profile.schema.json` beside this module; it covers the extension
fields that this package writes. Validators are compiled at the first call, without opening a socket.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cache
from importlib import resources
from typing import Any

import jsonschema_rs
import orjson

MAX_REASONS = 5
REASON_LIMIT = 200
"""Maximum characters of a reason; a failed `oneOf` would repeat the whole Item."""

_STAC = "https://schemas.stacspec.org/v1.1.0"
_SPECS = {"catalog": "catalog-spec", "collection": "collection-spec"}
"""Folder in the address of a core schema (default: `item-spec`). pystac has all schemas in a single folder."""
_ENTITIES = {"Feature": "item", "Collection": "collection", "Catalog": "catalog"}


def validate_item(item: Mapping[str, Any]) -> list[str]:
    """Return at most MAX_REASONS reasons why an Item violates STAC or the KFM profile."""
    if item.get("type") != "Feature":
        return [f"type: {item.get('type')!r} is not 'Feature', an Item's type"]
    return validate_document(item) or _disorder(item)


def validate_document(document: Mapping[str, Any]) -> list[str]:
    """Return at most MAX_REASONS reasons why a document is invalid; empty if it is valid."""
    entity = _ENTITIES.get(str(document.get("type")))
    if entity is None:
        return [f"type: {document.get('type')!r} is not one of {sorted(_ENTITIES)}"]
    reasons: list[str] = []
    for validator in _validators()[entity]:
        if not validator.is_valid(document):
            for error in validator.iter_errors(document):
                reasons.append(_reason(error))
                if len(reasons) == MAX_REASONS:
                    return reasons
    return reasons


def _disorder(item: Mapping[str, Any]) -> list[str]:
    """Return faults that JSON Schema misses: reversed intervals or boxes, unsupported times."""
    properties = item["properties"]
    texts = [properties.get(name) for name in ("datetime", "start_datetime", "end_datetime")]
    try:
        _, start, end = (None if text is None else datetime.fromisoformat(text) for text in texts)
    except ValueError as error:
        # RFC 3339 has leap seconds, which neither Python nor PostgreSQL supports.
        return [f"properties: {error}"]
    reasons = []
    if start is not None and end is not None and start > end:
        reasons.append(f"properties: start_datetime {texts[1]} is after end_datetime {texts[2]}")
    _, south, _, north = item.get("bbox", (0, 0, 0, 0))
    if south > north:
        reasons.append(f"bbox: south {south} is north of north {north}")
    return reasons


def _reason(error: Any) -> str:
    location = ".".join(str(part) for part in error.instance_path) or "the document"
    return f"{location}: {error.message}"[:REASON_LIMIT]


@cache
def _validators() -> Mapping[str, tuple[Any, ...]]:
    schemas = _core_schemas()
    registry = jsonschema_rs.Registry(list(schemas.items()), draft=jsonschema_rs.Draft7)
    profile = resources.files("kfm_dagster.catalog") / "kfm-profile.schema.json"
    ours = _compile(orjson.loads(profile.read_bytes()), registry)
    return {
        entity: (_compile(schemas[_address(entity)], registry), ours) for entity in ("item", "collection", "catalog")
    }


def _compile(schema: Any, registry: Any) -> Any:
    return jsonschema_rs.Draft7Validator(schema, registry=registry, validate_formats=True, offline=True)


def _core_schemas() -> dict[str, Any]:
    """Return the core schemas by the addresses that they use to refer to each other."""
    # pystac.validation is not used, because it imports jsonschema; importing jsonschema's formats takes a CPU second.
    folder = resources.files("pystac") / "validation" / "jsonschemas"
    core = {
        _address(entry.name.removesuffix(".json")): orjson.loads(entry.read_bytes())
        for entry in (folder / "stac-spec" / "v1.1.0").iterdir()
        if entry.name.endswith(".json")
    }
    geojson = {
        f"https://geojson.org/schema/{name}.json": orjson.loads((folder / "geojson" / f"{name}.json").read_bytes())
        for name in ("Feature", "Geometry")
    }
    return {**core, **geojson}


def _address(name: str) -> str:
    return f"{_STAC}/{_SPECS.get(name, 'item-spec')}/json-schema/{name}.json"
