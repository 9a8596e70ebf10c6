"""The official extension schemas, compiled offline: what the KFM profile is measured against."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema_rs

from kfm_dagster.catalog.validation import _core_schemas

NOT_HERE = {"alternate-assets", "classification", "datacube", "storage", "xarray-assets"}
"""Extensions whose schemas the folder does not have; the profile alone covers their fields."""


class OfficialSchemas:
    """Checks documents against the extensions that they declare."""

    def __init__(self, folder: Path) -> None:
        # `proj:projjson`, which we do not write, refers to PROJ's own schema.
        projjson = ("https://proj.org/schemas/v0.7/projjson.schema.json", {})
        registry = jsonschema_rs.Registry([*_core_schemas().items(), projjson], draft=jsonschema_rs.Draft7)
        self._validators = {
            f"https://stac-extensions.github.io/{path.parent.relative_to(folder)}/schema.json": (
                jsonschema_rs.Draft7Validator(json.loads(path.read_bytes()), registry=registry, offline=True)
            )
            for path in folder.rglob("schema.json")
        }
        self.checked: set[str] = set()

    def errors(self, document: Mapping[str, Any]) -> list[str]:
        """What its extensions say against a document; one that is neither here nor in NOT_HERE is a KeyError."""
        found = []
        for uri in document.get("stac_extensions", []):
            if uri.split("/")[3] in NOT_HERE:
                continue
            found += [f"{uri}: {error.message}" for error in self._validators[uri].iter_errors(document)]
            self.checked.add(uri.split("/")[3])
        return found
