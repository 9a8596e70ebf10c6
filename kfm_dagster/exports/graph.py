"""Graph export: (:Artifact {content_hash}), Items, objects and derivations (IEN-15).

    (:Artifact)-[:WAS_DERIVED_FROM]->(:Artifact | :Source)      (:Artifact | :Item)-[:WAS_GENERATED_BY]->(:Activity)
    (:Item)-[:WAS_DERIVED_FROM]->(:Object)                      (:Activity)-[:USED]->(:Object)

An Activity is a pipeline node in a run, a Source an external input, an Object a version of an Item's object. An :Item
stands for one write of an Item. The next write adds another :Item, so no edge is ever removed; `state` shows whether
the write is still current. The export streams a snapshot, so its memory does not grow with the database.
Every statement is a MERGE on a node's key, so statements may be repeated, in any order.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from io import TextIOWrapper
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from kfm_dagster.catalog.layout import item_path
from kfm_dagster.contracts.identity import rfc3339, uuid8
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.exports.atomic_files import atomic_files
from kfm_dagster.ingest.nodes import MessageParse, StacRegister
from kfm_dagster.lineage.unit import object_entity
from kfm_dagster.storage.database import Database, Transaction

CSV_NODE = ("id:ID", ":LABEL")
CSV_EDGE = (":START_ID", ":END_ID", ":TYPE")
"""Headers of neo4j-admin's import, which other bulk loaders also read."""
LABELS: Mapping[str, tuple[str, ...]] = {
    "Artifact": ("content_hash", "node", "step", "uri", "sha256", "outcome", "valid_from", "valid_to"),
    "Activity": ("activity_id", "run_id", "node", "step", "started_at", "ended_at"),
    "Source": ("source_id", "uri", "checksum", "etag"),
    "Object": ("object_id", "uri", "version"),
    "Item": ("item_id", "stac_item_id", "collection", "path", "sha256", "state", "valid_from", "valid_to"),
}
"""Properties of each label's nodes, the key first. All are texts; times are RFC 3339."""
RELATIONSHIPS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "WAS_GENERATED_BY": (("Artifact", "Activity"), ("Item", "Activity")),
    "WAS_DERIVED_FROM": (("Artifact", "Artifact"), ("Artifact", "Source"), ("Item", "Object")),
    "USED": (("Activity", "Object"),),
}
"""Start and end labels of each kind of relationship; the kinds are named as in PROV-O."""

_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_SPECIAL = re.compile(r"[\\'\x00-\x1f\x7f-\x9f\u2028\u2029]")


class NodeKey(NamedTuple):
    """The key of a node: its label, and the value of the label's first property."""

    label: str
    value: str

    @property
    def csv_id(self) -> str:
        """Identifier that is unique among the nodes of all labels."""
        return f"{self.label}:{self.value}"

    def pattern(self, variable: str) -> str:
        """Return the node's pattern for a MERGE."""
        return f"({variable}:{self.label} {{{LABELS[self.label][0]}: {literal(self.value)}}})"


def merge_node(key: NodeKey, properties: Mapping[str, str | None]) -> str:
    """Return the statement that creates or updates a node; None removes a property."""
    settings = ", ".join(f"n.{name} = {literal(value)}" for name, value in properties.items())
    return f"MERGE {key.pattern('n')} SET {settings};\n"


def merge_edge(kind: str, start: NodeKey, end: NodeKey) -> str:
    """Return the statement that creates an edge, and its nodes if missing."""
    return f"MERGE {start.pattern('a')} MERGE {end.pattern('b')} MERGE (a)-[:{kind}]->(b);\n"


def literal(value: str | None) -> str:
    """Return an openCypher literal on a single line; quotes in the text are escaped."""
    if value is None:
        return "null"
    return "'" + _SPECIAL.sub(lambda match: _ESCAPES.get(match[0], f"\\u{ord(match[0]):04X}"), value) + "'"


def schema_statements() -> Iterator[str]:
    """Yield idempotent table declarations for engines that need them (LadybugDB, Kuzu)."""
    for label, (key, *properties) in LABELS.items():
        columns = ", ".join((f"{key} STRING PRIMARY KEY", *(f"{name} STRING" for name in properties)))
        yield f"CREATE NODE TABLE IF NOT EXISTS {label} ({columns});\n"
    for kind, ends in RELATIONSHIPS.items():
        yield f"CREATE REL TABLE IF NOT EXISTS {kind} ({', '.join(f'FROM {start} TO {end}' for start, end in ends)});\n"


BATCH = 1_000
"""Rows per fetch."""
NODE_COLUMNS = (*CSV_NODE, *dict.fromkeys(name for properties in LABELS.values() for name in properties))
Node: TypeAlias = tuple[NodeKey, Mapping[str, str | None]]
FILES: Mapping[str, bytes] = {
    "schema.cypher": b"// kfm export graph, version 1: tables for LadybugDB and Kuzu\n",
    "graph.cypher": b"// kfm export graph, version 1: openCypher, one statement a line\n",
    "nodes.csv": f"{','.join(NODE_COLUMNS)}\n".encode(),
    "edges.csv": f"{','.join(CSV_EDGE)}\n".encode(),
}
"""Opening of each file, by name."""


def export_graph(database: Database, registry: ContractRegistry, *, folder: Path) -> Mapping[str, int]:
    """Write FILES; return counts by label of node and kind of edge.

    Raises ForeignFileError, ConfigurationError. The same database gives the same bytes.
    """
    public_name = partial(public_node, registry)
    counts: Counter[str] = Counter()
    with atomic_files(folder, FILES) as opened, database.snapshot() as tx:
        tx.run("exports.stand_still")
        tx.connection.execution_options(yield_per=BATCH)
        files = [TextIOWrapper(file, encoding="utf-8", newline="") for file in opened]
        schema, statements, nodes_file, edges_file = files
        schema.writelines(schema_statements())
        nodes = csv.DictWriter(nodes_file, NODE_COLUMNS, lineterminator="\n")
        edges = csv.writer(edges_file, lineterminator="\n")
        for key, properties in _nodes(tx, public_name):
            statements.write(merge_node(key, properties))
            names = {"id:ID": key.csv_id, ":LABEL": key.label, LABELS[key.label][0]: key.value}
            nodes.writerow({**names, **properties})
            counts[key.label] += 1
        for kind, start, end in _edges(tx, public_name):
            statements.write(merge_edge(kind, start, end))
            edges.writerow([start.csv_id, end.csv_id, kind])
            counts[kind] += 1
        for file in files:
            # Detached without closing, because atomic_files still writes the underlying files to disk.
            file.detach()
    return dict(counts)


def public_node(registry: ContractRegistry, node: str) -> str:
    """Return a node's name with the public name of its dataset."""
    dataset, dot, rest = node.partition(".")
    return f"{registry[dataset].public_id}.{rest}" if dot and dataset in registry.contracts else node


def _nodes(tx: Transaction, named: Callable[[str], str]) -> Iterator[Node]:
    for row in tx.run("exports.artifacts"):
        properties = {"node": named(row.node), "step": row.step, "uri": row.uri, "sha256": row.sha256}
        properties |= {"outcome": row.outcome, **_validity(row.valid_from, row.valid_to)}
        yield _artifact(row.content_hash), properties
    for row in tx.run("exports.activities"):
        times = {"started_at": _time(row.started_at), "ended_at": _time(row.ended_at)}
        yield _activity(row, named), {"run_id": row.run_id, "node": named(row.node), "step": row.step, **times}
    # Rows are sorted by source, so that a source of many contents is yielded once.
    for source, rows in groupby((row for row in tx.run("exports.inputs") if not row.source_hash), key=_source):
        row = next(rows)
        yield source, {"uri": row.uri, "checksum": row.checksum or None, "etag": row.etag or None}
    for row in tx.run("exports.objects"):
        yield _object(row), {"uri": row.object_uri, "version": row.object_version}
    for row in tx.run("exports.items", operator=StacRegister.operator):
        path = item_path(row.collection_id, row.partition_key, row.item_id)
        properties = {"stac_item_id": row.item_id, "collection": row.collection_id, "path": path}
        properties |= {"sha256": row.after_sha256, "state": row.state}
        yield _item(row), properties | _validity(row.logged_at, row.ended_at)


def _edges(tx: Transaction, named: Callable[[str], str]) -> Iterator[tuple[str, NodeKey, NodeKey]]:
    for row in tx.run("exports.generations"):
        yield "WAS_GENERATED_BY", _artifact(row.content_hash), _activity(row, named)
    for row in tx.run("exports.inputs"):
        origin = _artifact(row.source_hash) if row.source_hash else _source(row)
        yield "WAS_DERIVED_FROM", _artifact(row.content_hash), origin
    for row in tx.run("exports.items", operator=StacRegister.operator):
        if row.object_uri is not None:
            yield "WAS_DERIVED_FROM", _item(row), _object(row)
        if row.node is not None:
            yield "WAS_GENERATED_BY", _item(row), _activity(row, named)
    for row in tx.run("exports.claims", operator=MessageParse.operator):
        yield "USED", _activity(row, named), _object(row)


def _artifact(content_hash: str) -> NodeKey:
    return NodeKey("Artifact", content_hash)


def _activity(row: Any, named: Callable[[str], str]) -> NodeKey:
    return NodeKey("Activity", f"urn:uuid:{uuid8('activity', row.run_id, named(row.node), row.step)}")


def _source(row: Any) -> NodeKey:
    return NodeKey("Source", f"urn:uuid:{uuid8('source', row.uri, row.checksum, row.etag)}")


def _object(row: Any) -> NodeKey:
    # The id of the object in PROV documents, so that graph and documents can be joined.
    return NodeKey("Object", object_entity(row.object_uri, row.object_version))


def _item(row: Any) -> NodeKey:
    writing = uuid8("item-writing", row.collection_id, row.item_id, str(row.promotion_id))
    return NodeKey("Item", f"urn:uuid:{writing}")


def _validity(start: Any, end: Any) -> dict[str, str | None]:
    return {"valid_from": _time(start), "valid_to": _time(end)}


def _time(column: Any) -> str | None:
    return None if column is None else rfc3339(column)
