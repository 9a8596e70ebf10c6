"""Reference of settings, dataset contracts and configuration files, by their JSON Schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from docs_site.text import code, prose, table
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.settings import PREFIX, Settings

SPEC = Path(__file__).resolve().parents[1] / "docs" / "spec"
CONTRACT = "dataset-contract.schema.json"
FILES = {
    "state-machine.schema.json": "state_machine.yaml",
    "alerts.schema.json": "alerts.yaml",
    "announcements.schema.json": "announcements.yaml",
    "retention.schema.json": "retention.yaml",
    "replay-plan.schema.json": "replay_plan.yaml",
    "replay-selection.schema.json": "A selection of `kfm replay`",
    "chaos-plan.schema.json": "A plan of faults (`KFM_CHAOS_PLAN`)",
}
"""Schemas of files that people write, each with its title; the schema of contracts is on their own page."""
_BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "more than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
    "minLength": "characters, at least",
    "maxLength": "characters, at most",
    "pattern": "of the form",
}
_NAMES = {"password": "secret", "path": "path", "date": "date", "string": "text"}
"""Types with other names than in JSON Schema."""


def settings() -> str:
    """Return the page of the settings."""
    schema = Settings.model_json_schema()
    lines = [
        "# Settings",
        "",
        "Every environment variable of the package. Wrong values are refused before anything runs, all in one line. A",
        "misspelt name is logged with the probable setting. The usual variables of AWS (`AWS_ENDPOINT_URL` and so on),",
        "OpenTelemetry and OpenLineage apply, too.",
        "",
    ]
    for name, field in Settings.model_fields.items():
        entry = schema["properties"][name]
        facts = [_type(entry, schema), *_limits(entry)]
        if (default := entry.get("default")) not in (None, ""):
            facts.append(f"default {code(str(default))}")
        lines += [f"## {PREFIX}{name.upper()}", "", prose(str(field.description)), "", f"*{'; '.join(facts)}*", ""]
    return "\n".join(lines)


def contracts() -> str:
    """Return the page of the dataset contracts: a list of them, and every key."""
    rows = [
        (
            f"[{contract.id}](../datasets.md#{contract.id})",
            contract.metadata.title,
            f"{code(contract.metadata_extract.reader)}",
            ", ".join(code(bucket) for bucket in contract.storage.buckets),
        )
        for contract in ContractRegistry.load()
    ]
    lines = [
        "# Dataset contracts",
        "",
        "A dataset is one YAML file. [A new dataset](../new-dataset.md) describes how to write one. These are shipped:",
        "",
        *table(["dataset", "title", "reader", "buckets"], rows),
        *_file(CONTRACT, "Keys of a contract"),
    ]
    return "\n".join(lines)


def configuration_files() -> str:
    """Return the page of the files in FILES."""
    lines = [
        "# Configuration files",
        "",
        "They are in `configs/`, or in the folder that `KFM_CONFIGS_DIR` names. A wrong file is refused with file,",
        "line and reason before anything runs.",
        "",
    ]
    for schema, title in FILES.items():
        lines += _file(schema, title)
    return "\n".join(lines)


def _file(name: str, title: str) -> list[str]:
    schema = json.loads((SPEC / name).read_text(encoding="utf-8"))
    lines = [f"## {title}", "", f"[JSON Schema for editors](../spec/{name})", ""]
    lines += _keys(schema, schema)
    for definition, entry in schema.get("$defs", {}).items():
        if "properties" in entry:
            lines += [f"### {definition}", "", *_description(entry), *_keys(entry, schema)]
    return lines


def _description(entry: Mapping[str, Any]) -> list[str]:
    description = entry.get("description", "")
    return [prose(description), ""] if description else []


def _keys(entry: Mapping[str, Any], schema: Mapping[str, Any]) -> list[str]:
    required = set(entry.get("required", []))
    return table(
        ["key", "type", "default", "meaning"],
        (
            (
                code(name),
                "; ".join([_type(of, schema), *_limits(of)]),
                "required" if name in required else _default(of),
                prose(of.get("description", "")),
            )
            for name, of in entry.get("properties", {}).items()
        ),
    )


def _default(entry: Mapping[str, Any]) -> str:
    default = entry.get("default")
    # The defaults of a part are in the table of its own keys.
    return "" if default is None or isinstance(default, dict) else code(json.dumps(default))


def _type(entry: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Describe the type of a value in words; a definition with its own keys is named."""
    if "$ref" in entry:
        name = str(entry["$ref"]).rsplit("/", 1)[1]
        of = schema["$defs"][name]
        return name if "properties" in of else _type(of, schema)
    if variants := entry.get("anyOf", entry.get("oneOf")):
        return " or ".join(dict.fromkeys(_type(kind, schema) for kind in variants if kind.get("type") != "null"))
    if values := entry.get("enum", [entry["const"]] if "const" in entry else None):
        return ", ".join(code(str(value)) for value in values)
    return _plain(entry, schema)


def _plain(entry: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    kind = entry.get("type", "any value")
    if kind == "array":
        of = entry.get("items", {})
        return f"list of {_type(of, schema)}" if of else "list"
    if kind == "object":
        of = entry.get("additionalProperties")
        return f"map to {_type(of, schema)}" if isinstance(of, Mapping) else "map"
    return _NAMES.get(str(entry.get("format", kind)), str(kind))


def _limits(entry: Mapping[str, Any]) -> Iterator[str]:
    variants: Sequence[Mapping[str, Any]] = entry.get("anyOf", [entry])
    for variant in variants:
        yield from (f"{words} {code(str(variant[key]))}" for key, words in _BOUNDS.items() if key in variant)
