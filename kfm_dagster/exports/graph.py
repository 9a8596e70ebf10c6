"""Graph export: every output as (:Artifact {content_hash}), every Item and object, and what led to which (IEN-15).

    (:Artifact)-[:WAS_DERIVED_FROM]->(:Artifact | :Source)      (:Artifact | :Item)-[:WAS_GENERATED_BY]->(:Activity)
    (:Item)-[:WAS_DERIVED_FROM]->(:Object)                      (:Activity)-[:USED]->(:Object)

An Activity is a node in a run, a Source an input that no node here made, an Object one version of what an Item was
made of. An Item is one writing of it: the next writing is another node, so that no edge ever has to go, and `state`
says whether it still stands. One state of the database is read, as a stream: memory does not grow with it.
Every statement is a MERGE on a node's key, so statements may come twice and in any order.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from io import TextIOWrapper
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from kfm_dagster.catalog.layout import item_path
from kfm_dagster.contracts.identity import rfc3339, uuid8
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.exports.atomic_files import ExportFile, atomic_files
from kfm_dagster.ingest.nodes import MessageParse, StacRegister
from kfm_dagster.lineage.unit import object_entity
from kfm_dagster.storage.database import Database, Transaction

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


BATCH = 1_000
"""Rows that are fetched at a time."""
NODE_COLUMNS = (*CSV_NODE, *dict.fromkeys(name for properties in LABELS.values() for name in properties))
Node: TypeAlias = tuple[NodeKey, Mapping[str, str | None]]
FILES = (
    ExportFile(name="schema.cypher", opening=b"// kfm export graph, version 1: tables for LadybugDB and Kuzu\n"),
    ExportFile(name="graph.cypher", opening=b"// kfm export graph, version 1: openCypher, one statement a line\n"),
    ExportFile(name="nodes.csv", opening=f"{','.join(NODE_COLUMNS)}\n".encode()),
    ExportFile(name="edges.csv", opening=f"{','.join(CSV_EDGE)}\n".encode()),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphExport:
    """What was written: files, and counts by label of node and kind of edge."""

    files: tuple[Path, ...]
    counts: Mapping[str, int]


def export_graph(database: Database, registry: ContractRegistry, *, folder: Path) -> GraphExport:
    """Write the graph's files. The same database gives the same bytes. Raises ForeignFileError, ConfigurationError."""
    named = partial(public_node, registry)
    counts: Counter[str] = Counter()
    with atomic_files(folder, FILES) as opened, database.snapshot() as tx:
        tx.run("exports.stand_still")
        tx.connection.execution_options(yield_per=BATCH)
        files = [TextIOWrapper(file, encoding="utf-8", newline="") for file in opened]
        schema, statements, nodes_file, edges_file = files
        schema.writelines(schema_statements())
        nodes = csv.DictWriter(nodes_file, NODE_COLUMNS, lineterminator="\n")
        edges = csv.writer(edges_file, lineterminator="\n")
        for key, properties in _nodes(tx, named):
            statements.write(merge_node(key, properties))
            names = {"id:ID": key.csv_id, ":LABEL": key.label, LABELS[key.label][0]: key.value}
            nodes.writerow({**names, **properties})
            counts[key.label] += 1
        for kind, start, end in _edges(tx, named):
            statements.write(merge_edge(kind, start, end))
            edges.writerow([start.csv_id, end.csv_id, kind])
            counts[kind] += 1
        for file in files:
            # The files below stay open: they are not in their places yet.
            file.detach()
    return GraphExport(files=tuple(folder / file.name for file in FILES), counts=dict(counts))


def public_node(registry: ContractRegistry, node: str) -> str:
    """Return a node's name with what public outputs call its dataset."""
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
    # Rows come in the order of what they name, so that a source which many contents share is met once.
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
    # The PROV documents' name of it, so that both can be asked together.
    return NodeKey("Object", object_entity(row.object_uri, row.object_version))


def _item(row: Any) -> NodeKey:
    writing = uuid8("item-writing", row.collection_id, row.item_id, str(row.promotion_id))
    return NodeKey("Item", f"urn:uuid:{writing}")


def _validity(start: Any, end: Any) -> dict[str, str | None]:
    return {"valid_from": _time(start), "valid_to": _time(end)}


def _time(column: Any) -> str | None:
    return None if column is None else rfc3339(column)
