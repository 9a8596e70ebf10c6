"""The JSON Schemas of configuration files, as docs/spec publishes them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


def json_schema(model: type[BaseModel], *, urn: str) -> dict[str, Any]:
    """Return a file's JSON Schema (2020-12), for editors and CI: docs/spec/NAME.schema.json.

    It has the form of each part; reading also checks the rules between parts.
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{urn}",
        **model.model_json_schema(),
    }
