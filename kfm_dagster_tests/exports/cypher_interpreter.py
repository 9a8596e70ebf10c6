"""An interpreter of exactly the openCypher that the graph export emits; anything else is an error.

MERGE (n:Label {key: 'text'}) SET n.name = 'text' | null, ...;
MERGE (a:Label {key: 'text'}) MERGE (b:Label {key: 'text'}) MERGE (a)-[:KIND]->(b);
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

Key = tuple[str, str, str]
"""Label, property, value."""

_STRING = r"'(?:[^'\\\n\r]|\\['\\nrtbf]|\\u[0-9A-F]{4})*'"
_NODE = rf"\((\w+):(\w+) \{{(\w+): ({_STRING})\}}\)"
_SET = rf"n\.(\w+) = ({_STRING}|null)"
_MERGE_NODE = re.compile(rf"MERGE {_NODE} SET ({_SET}(?:, {_SET})*);")
_MERGE_EDGE = re.compile(rf"MERGE {_NODE} MERGE {_NODE} MERGE \(a\)-\[:(\w+)\]->\(b\);")
_ESCAPE = re.compile(r"\\(u[0-9A-F]{4}|.)")
_PLAIN = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "'": "'", "\\": "\\"}


@dataclass
class Graph:
    """Nodes with their properties by key, and edges, at most one of a kind between two nodes."""

    nodes: dict[Key, dict[str, str]] = field(default_factory=dict)
    edges: set[tuple[Key, str, Key]] = field(default_factory=set)

    def load(self, statements: Iterable[str]) -> Graph:
        for statement in statements:
            self._run(statement)
        return self

    def _run(self, statement: str) -> None:
        if found := _MERGE_EDGE.fullmatch(statement):
            assert (found[1], found[5]) == ("a", "b")
            start, end = self._merged(found.groups()[1:4]), self._merged(found.groups()[5:8])
            self.edges.add((start, found[9], end))
            return
        found = _MERGE_NODE.fullmatch(statement)
        assert found, f"not in the subset: {statement!r}"
        properties = self.nodes[self._merged(found.groups()[1:4])]
        for name, value in re.findall(_SET, found[5]):
            # openCypher: a property that is set to null is removed.
            if value == "null":
                properties.pop(name, None)
            else:
                properties[name] = unquoted(value)

    def _merged(self, parts: tuple[str | None, ...]) -> Key:
        label, name, value = (str(part) for part in parts)
        key = (label, name, unquoted(value))
        self.nodes.setdefault(key, {})
        return key


def unquoted(literal: str) -> str:
    """The text of a string literal."""
    return _ESCAPE.sub(
        lambda found: chr(int(found[1][1:], 16)) if found[1].startswith("u") else _PLAIN[found[1]], literal[1:-1]
    )
