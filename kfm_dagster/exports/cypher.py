"""openCypher and bulk CSV: nodes and edges of a property graph as text, so that loading it again changes nothing.

Every statement is a MERGE on a node's key, so statements may come twice and in any order. Belongs here: the forms and
their escapes. Does not belong here: which nodes and edges there are (`graph.py`).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import TextIOBase

CSV_NODE = ("id:ID", ":LABEL")
CSV_EDGE = (":START_ID", ":END_ID", ":TYPE")
"""Headers of neo4j-admin's import, which other bulk loaders read, too."""

_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_SPECIAL = re.compile(r"[\\'\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeKey:
    """What names a node: label, and one property with its value."""

    label: str
    name: str
    value: str

    @property
    def csv_id(self) -> str:
        """Identifier among the nodes of every label."""
        return f"{self.label}:{self.value}"

    def pattern(self, variable: str) -> str:
        """Return the node as a MERGE names it."""
        return f"({variable}:{self.label} {{{self.name}: {literal(self.value)}}})"


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphNode:
    """A node and its other properties; None is a property that it has not."""

    key: NodeKey
    properties: Mapping[str, str | None] = field(default_factory=dict)

    def merge(self) -> str:
        """Return the statement that makes the node what it is, whatever it was."""
        settings = ", ".join(f"n.{name} = {literal(value)}" for name, value in self.properties.items())
        return f"MERGE {self.key.pattern('n')} SET {settings};"


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphEdge:
    """An edge; two nodes have one of a kind."""

    kind: str
    start: NodeKey
    end: NodeKey

    def merge(self) -> str:
        """Return the statement that makes the edge, and its nodes where they are not there yet."""
        return f"MERGE {self.start.pattern('a')} MERGE {self.end.pattern('b')} MERGE (a)-[:{self.kind}]->(b);"


def literal(value: str | None) -> str:
    """Return an openCypher literal on one line; a text cannot end its quotes."""
    if value is None:
        return "null"
    return "'" + _SPECIAL.sub(lambda found: _ESCAPES.get(found[0], f"\\u{ord(found[0]):04X}"), value) + "'"


class CsvRows:
    """Rows of one bulk file under a fixed header."""

    def __init__(self, file: TextIOBase, columns: Sequence[str]) -> None:
        self._columns = columns
        self._rows = csv.writer(file, lineterminator="\n")

    def write(self, row: Mapping[str, str | None]) -> None:
        """Write a row; columns that it has not stay empty."""
        self._rows.writerow([row.get(name) or "" for name in self._columns])


def csv_header(columns: Sequence[str]) -> bytes:
    """Return the first line of a bulk file."""
    return (",".join(columns) + "\n").encode()
