"""The JSON Schemas of configuration files, as docs/spec publishes them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode

from kfm_dagster.ledger.record import NoddWalRecord


def json_schema(model: type[BaseModel], *, urn: str, mode: JsonSchemaMode = "validation") -> dict[str, Any]:
    """Return a file's JSON Schema (2020-12), for editors and CI: docs/spec/NAME.schema.json.

    It describes each part alone; the loader also checks rules between parts.
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{urn}",
        **model.model_json_schema(mode=mode),
    }


def wal_record_schema() -> dict[str, Any]:
    """Return a record's JSON Schema (2020-12): docs/spec/nodd-wal-record.schema.json."""
    return json_schema(NoddWalRecord, urn="kfm:nodd:wal-record:v1", mode="serialization")
