"""The exported graph's model: its labels and their properties, its relationships, and both as a typed engine's schema.

Belongs here: which kinds of nodes and relationships there are. Does not belong here: where they come from (`graph.py`)
or how they are written (`cypher.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeLabel:
    """What a label's nodes have: the property that names one, and the others. All are texts; times are RFC 3339."""

    key: str
    properties: tuple[str, ...]


LABELS: Mapping[str, NodeLabel] = {
    "Artifact": NodeLabel(
        key="content_hash", properties=("node", "step", "uri", "sha256", "outcome", "valid_from", "valid_to")
    ),
    "Activity": NodeLabel(key="activity_id", properties=("run_id", "node", "step", "started_at", "ended_at")),
    "Source": NodeLabel(key="source_id", properties=("uri", "checksum", "etag")),
    "Object": NodeLabel(key="object_id", properties=("uri", "version")),
    "Item": NodeLabel(
        key="item_id",
        properties=("stac_item_id", "collection", "path", "sha256", "state", "valid_from", "valid_to"),
    ),
}
RELATIONSHIPS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "WAS_GENERATED_BY": (("Artifact", "Activity"), ("Item", "Activity")),
    "WAS_DERIVED_FROM": (("Artifact", "Artifact"), ("Artifact", "Source"), ("Item", "Object")),
    "USED": (("Activity", "Object"),),
}
"""Labels that each kind leads from and to; the kinds are PROV-O's."""


def schema_statements() -> Iterator[str]:
    """Yield what declares the tables of an engine that wants them first (LadybugDB, Kuzu); again changes nothing."""
    for label, node in LABELS.items():
        columns = ", ".join((f"{node.key} STRING PRIMARY KEY", *(f"{name} STRING" for name in node.properties)))
        yield f"CREATE NODE TABLE IF NOT EXISTS {label} ({columns});"
    for kind, ends in RELATIONSHIPS.items():
        yield f"CREATE REL TABLE IF NOT EXISTS {kind} ({', '.join(f'FROM {start} TO {end}' for start, end in ends)});"
