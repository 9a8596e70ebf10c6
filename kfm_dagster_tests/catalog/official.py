"""STAC's official schemas, core and extensions, offline: the reference for the KFM profile."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema_rs

NOT_HERE = {"alternate-assets", "classification", "datacube", "storage", "version", "xarray-assets"}
"""Extensions without a schema in the folder; only the profile covers their fields."""
CORE = {"Catalog": "catalog-spec/json-schema/catalog", "Collection": "collection-spec/json-schema/collection"}


class OfficialSchemas:
    """Checks documents against core, as pystac ships it, and the extensions that they declare."""

    def __init__(self, folder: Path) -> None:
        shipped = resources.files("pystac.validation.jsonschemas")
        schemas: dict[str, Any] = {}
        for entry in (shipped / "stac-spec" / "v1.1.0").iterdir():
            if entry.name.endswith(".json"):
                document = json.loads(entry.read_text(encoding="utf-8"))
                # The $id of common.json lacks its dot.
                schemas[document["$id"].rstrip("#").replace("commonjson", "common.json")] = document
        for name in ("Feature", "Geometry"):
            text = (shipped / "geojson" / f"{name}.json").read_text(encoding="utf-8")
            schemas[f"https://geojson.org/schema/{name}.json"] = json.loads(text)
        for path in folder.rglob("schema.json"):
            document = json.loads(path.read_text(encoding="utf-8"))
            schemas[document["$id"].rstrip("#")] = document
        # Items use WKT 2; there is no local schema of PROJJSON, so an Item with it must fail.
        schemas["https://proj.org/schemas/v0.7/projjson.schema.json"] = {"not": {}}
        registry = jsonschema_rs.Registry(list(schemas.items()), draft=jsonschema_rs.Draft7)
        self._validators = {
            address: jsonschema_rs.Draft7Validator(document, registry=registry, validate_formats=True, offline=True)
            for address, document in schemas.items()
        }
        self.checked: set[str] = set()

    def errors(self, document: Mapping[str, Any]) -> list[str]:
        """Return schema errors; an extension that is neither here nor in NOT_HERE is a KeyError."""
        core = f"https://schemas.stacspec.org/v1.1.0/{CORE.get(document['type'], 'item-spec/json-schema/item')}.json"
        declared = [uri for uri in document.get("stac_extensions", ()) if uri.split("/")[3] not in NOT_HERE]
        self.checked |= {uri.split("/")[3] for uri in declared}
        return [
            f"{uri}: {error.message}"
            for uri in (core, *declared)
            for error in self._validators[uri].iter_errors(document)
        ]
