"""PROV-JSON of the lineage's PROV documents, so that the package prov can read and compare them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from kfm_dagster.lineage.prov import CONTEXT, PREFIXES, Node

RELATIONS: Mapping[str, tuple[str, str]] = {
    "used": ("prov:activity", "prov:entity"),
    "wasGeneratedBy": ("prov:entity", "prov:activity"),
    "wasInvalidatedBy": ("prov:entity", "prov:activity"),
    "wasDerivedFrom": ("prov:generatedEntity", "prov:usedEntity"),
    "wasRevisionOf": ("prov:generatedEntity", "prov:usedEntity"),
    "alternateOf": ("prov:alternate1", "prov:alternate2"),
    "specializationOf": ("prov:specificEntity", "prov:generalEntity"),
    "wasInformedBy": ("prov:informed", "prov:informant"),
    "wasAssociatedWith": ("prov:activity", "prov:agent"),
    "wasAttributedTo": ("prov:entity", "prov:agent"),
    "actedOnBehalfOf": ("prov:delegate", "prov:responsible"),
}
"""Relation > the roles of its subject and object in PROV-JSON (W3C submission 2013-04-24, section 3)."""

_JSON_RELATIONS: Mapping[str, tuple[str, Node]] = {
    "wasRevisionOf": ("wasDerivedFrom", {"prov:type": {"$": "prov:Revision", "type": "prov:QUALIFIED_NAME"}}),
}
"""Relations that PROV-JSON expresses as another relation with a type."""

_JSON_TIMES: Mapping[str, str] = {"startedAtTime": "prov:startTime", "endedAtTime": "prov:endTime"}


def prov_json(document: bytes) -> dict[str, Any]:
    """Convert a document of `prov_document` to PROV-JSON. Raises ValueError for anything else."""
    loaded = orjson.loads(document)
    # A document of an earlier release has fewer terms, with the same definitions.
    context = loaded.get("@context") if isinstance(loaded, dict) else None
    if not isinstance(context, dict) or not context or not context.items() <= CONTEXT.items():
        raise ValueError("not a PROV document of this package: it has another @context")
    records: dict[str, Any] = {"prefix": {"kfm": PREFIXES["kfm"], "urn": PREFIXES["urn"]}}
    for node in loaded["@graph"]:
        kind, *classes = node["type"]
        records.setdefault(kind.lower(), {})[node["id"]] = _json_attributes(node, classes)
        for relation, (subject, target) in RELATIONS.items():
            for other in _listed(node.get(relation, [])):
                # Named by the related ids, so that a repeated node adds no relation.
                name = f"_:{relation}.{node['id'][9:]}.{other[9:]}"
                kind, more = _JSON_RELATIONS.get(relation, (relation, {}))
                if relation == "wasInvalidatedBy":
                    more = {"prov:time": node["invalidatedAtTime"]}
                records.setdefault(kind, {})[name] = {subject: node["id"], target: other, **more}
    return records


def _json_attributes(node: Node, classes: list[str]) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for name, value in node.items():
        if name.startswith("kfm:"):
            attributes[name] = value
        elif name == "event_time":
            attributes["kfm:event_time"] = {"$": value, "type": "xsd:dateTime"}
        elif name in _JSON_TIMES:
            attributes[_JSON_TIMES[name]] = value
    names = [name if ":" in name else f"prov:{name}" for name in classes]
    attributes["prov:type"] = [{"$": name, "type": "prov:QUALIFIED_NAME"} for name in names]
    return attributes


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value
