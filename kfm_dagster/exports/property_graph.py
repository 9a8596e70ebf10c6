"""The exported graph's labels and relationships, and their text: openCypher, bulk CSV, and a typed engine's schema.

Every statement is a MERGE on a node's key, so statements may come twice and in any order. Does not belong here: which
nodes and edges there are (`graph.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

CSV_NODE = ("id:ID", ":LABEL")
CSV_EDGE = (":START_ID", ":END_ID", ":TYPE")
"""Headers of neo4j-admin's import, which other bulk loaders read, too."""
LABELS: Mapping[str, tuple[str, ...]] = {
    "Artifact": ("content_hash", "node", "step", "uri", "sha256", "outcome", "valid_from", "valid_to"),
    "Activity": ("activity_id", "run_id", "node", "step", "started_at", "ended_at"),
    "Source": ("source_id", "uri", "checksum", "etag"),
    "Object": ("object_id", "uri", "version"),
    "Item": ("item_id", "stac_item_id", "collection", "path", "sha256", "state", "valid_from", "valid_to"),
}
"""What a label's nodes have: first the property that names one. All are texts; times are RFC 3339."""
RELATIONSHIPS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "WAS_GENERATED_BY": (("Artifact", "Activity"), ("Item", "Activity")),
    "WAS_DERIVED_FROM": (("Artifact", "Artifact"), ("Artifact", "Source"), ("Item", "Object")),
    "USED": (("Activity", "Object"),),
}
"""Labels that each kind leads from and to; the kinds are PROV-O's."""

_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_SPECIAL = re.compile(r"[\\'\x00-\x1f\x7f-\x9f\u2028\u2029]")


class NodeKey(NamedTuple):
    """What names a node: its label, and the value of its label's first property."""

    label: str
    value: str

    @property
    def csv_id(self) -> str:
        """Identifier among the nodes of every label."""
        return f"{self.label}:{self.value}"

    def pattern(self, variable: str) -> str:
        """Return the node as a MERGE names it."""
        return f"({variable}:{self.label} {{{LABELS[self.label][0]}: {literal(self.value)}}})"


def merge_node(key: NodeKey, properties: Mapping[str, str | None]) -> str:
    """Return the statement that makes a node what it is, whatever it was; None is a property that it has not."""
    settings = ", ".join(f"n.{name} = {literal(value)}" for name, value in properties.items())
    return f"MERGE {key.pattern('n')} SET {settings};\n"


def merge_edge(kind: str, start: NodeKey, end: NodeKey) -> str:
    """Return the statement that makes an edge, and its nodes where they are not there yet."""
    return f"MERGE {start.pattern('a')} MERGE {end.pattern('b')} MERGE (a)-[:{kind}]->(b);\n"


def literal(value: str | None) -> str:
    """Return an openCypher literal on one line; a text cannot end its quotes."""
    if value is None:
        return "null"
    return "'" + _SPECIAL.sub(lambda found: _ESCAPES.get(found[0], f"\\u{ord(found[0]):04X}"), value) + "'"


def schema_statements() -> Iterator[str]:
    """Yield what declares the tables of an engine that wants them first (LadybugDB, Kuzu); again changes nothing."""
    for label, (key, *properties) in LABELS.items():
        columns = ", ".join((f"{key} STRING PRIMARY KEY", *(f"{name} STRING" for name in properties)))
        yield f"CREATE NODE TABLE IF NOT EXISTS {label} ({columns});\n"
    for kind, ends in RELATIONSHIPS.items():
        yield f"CREATE REL TABLE IF NOT EXISTS {kind} ({', '.join(f'FROM {start} TO {end}' for start, end in ends)});\n"
