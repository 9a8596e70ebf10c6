"""Graph export: every output as (:Artifact {content_hash}), every Item and object, and what led to which (IEN-15).

    (:Artifact)-[:WAS_DERIVED_FROM]->(:Artifact | :Source)      (:Artifact | :Item)-[:WAS_GENERATED_BY]->(:Activity)
    (:Item)-[:WAS_DERIVED_FROM]->(:Object)                      (:Activity)-[:USED]->(:Object)

An Activity is a node in a run, a Source an input that no node here made, an Object one version of what an Item was
made of. An Item is one writing of it: the next writing is another node, so that no edge ever has to go, and `state`
says whether it still stands. One state of the database is read, as a stream: memory does not grow with it.
Belongs here: which nodes and edges there are. Does not belong here: their kinds (`graph_model.py`) and their text
(`cypher.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from io import TextIOWrapper
from itertools import groupby
from pathlib import Path
from typing import Any

from kfm_dagster.catalog.layout import item_path
from kfm_dagster.contracts.identity import rfc3339, uuid8
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.exports.atomic_files import ExportFile, atomic_files
from kfm_dagster.exports.cypher import CSV_EDGE, CSV_NODE, CsvRows, GraphEdge, GraphNode, NodeKey, csv_header
from kfm_dagster.exports.graph_model import LABELS, schema_statements
from kfm_dagster.ingest.nodes import MessageParse, StacRegister
from kfm_dagster.lineage.unit import object_entity
from kfm_dagster.storage.database import Database, Transaction

BATCH = 1_000
"""Rows that are fetched at a time."""
NODE_COLUMNS = (
    *CSV_NODE,
    *dict.fromkeys(name for label in LABELS.values() for name in (label.key, *label.properties)),
)
FILES = (
    ExportFile(name="schema.cypher", opening=b"// kfm export graph, version 1: tables for LadybugDB and Kuzu\n"),
    ExportFile(name="graph.cypher", opening=b"// kfm export graph, version 1: openCypher, one statement a line\n"),
    ExportFile(name="nodes.csv", opening=csv_header(NODE_COLUMNS)),
    ExportFile(name="edges.csv", opening=csv_header(CSV_EDGE)),
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
        schema.writelines(f"{statement}\n" for statement in schema_statements())
        nodes, edges = CsvRows(nodes_file, NODE_COLUMNS), CsvRows(edges_file, CSV_EDGE)
        for node in _nodes(tx, named):
            key = node.key
            statements.write(node.merge() + "\n")
            nodes.write({"id:ID": key.csv_id, ":LABEL": key.label, key.name: key.value, **node.properties})
            counts[key.label] += 1
        for edge in _edges(tx, named):
            statements.write(edge.merge() + "\n")
            edges.write({":START_ID": edge.start.csv_id, ":END_ID": edge.end.csv_id, ":TYPE": edge.kind})
            counts[edge.kind] += 1
        for file in files:
            # The files below stay open: they are not in their places yet.
            file.detach()
    return GraphExport(files=tuple(folder / file.name for file in FILES), counts=dict(counts))


def public_node(registry: ContractRegistry, node: str) -> str:
    """Return a node's name with what public outputs call its dataset."""
    dataset, dot, rest = node.partition(".")
    return f"{registry[dataset].public_id}.{rest}" if dot and dataset in registry.contracts else node


def _nodes(tx: Transaction, named: Callable[[str], str]) -> Iterator[GraphNode]:
    for row in tx.run("exports.artifacts"):
        yield GraphNode(
            key=_artifact(row.content_hash),
            properties={
                "node": named(row.node),
                "step": row.step,
                "uri": row.uri,
                "sha256": row.sha256,
                "outcome": row.outcome,
                "valid_from": _time(row.valid_from),
                "valid_to": _time(row.valid_to),
            },
        )
    for row in tx.run("exports.activities"):
        yield GraphNode(
            key=_activity(row, named),
            properties={
                "run_id": row.run_id,
                "node": named(row.node),
                "step": row.step,
                "started_at": _time(row.started_at),
                "ended_at": _time(row.ended_at),
            },
        )
    # Rows come in the order of what they name, so that a source which many contents share is met once.
    for source_id, rows in groupby((row for row in tx.run("exports.inputs") if not row.source_hash), key=_source_id):
        row = next(rows)
        properties = {"uri": row.uri, "checksum": row.checksum or None, "etag": row.etag or None}
        yield GraphNode(key=_source(source_id), properties=properties)
    yield from _objects_and_items(tx)


def _objects_and_items(tx: Transaction) -> Iterator[GraphNode]:
    for row in tx.run("exports.objects"):
        yield GraphNode(key=_object(row), properties={"uri": row.object_uri, "version": row.object_version})
    for row in tx.run("exports.items", operator=StacRegister.operator):
        yield GraphNode(
            key=_item(row),
            properties={
                "stac_item_id": row.item_id,
                "collection": row.collection_id,
                "path": item_path(row.collection_id, row.partition_key, row.item_id),
                "sha256": row.after_sha256,
                "state": row.state,
                "valid_from": _time(row.logged_at),
                "valid_to": _time(row.ended_at),
            },
        )


def _edges(tx: Transaction, named: Callable[[str], str]) -> Iterator[GraphEdge]:
    for row in tx.run("exports.generations"):
        yield GraphEdge(kind="WAS_GENERATED_BY", start=_artifact(row.content_hash), end=_activity(row, named))
    for row in tx.run("exports.inputs"):
        origin = _artifact(row.source_hash) if row.source_hash else _source(_source_id(row))
        yield GraphEdge(kind="WAS_DERIVED_FROM", start=_artifact(row.content_hash), end=origin)
    for row in tx.run("exports.items", operator=StacRegister.operator):
        if row.object_uri is not None:
            yield GraphEdge(kind="WAS_DERIVED_FROM", start=_item(row), end=_object(row))
        if row.node is not None:
            yield GraphEdge(kind="WAS_GENERATED_BY", start=_item(row), end=_activity(row, named))
    for row in tx.run("exports.claims", operator=MessageParse.operator):
        yield GraphEdge(kind="USED", start=_activity(row, named), end=_object(row))


def _artifact(content_hash: str) -> NodeKey:
    return _key("Artifact", content_hash)


def _activity(row: Any, named: Callable[[str], str]) -> NodeKey:
    return _key("Activity", f"urn:uuid:{uuid8('activity', row.run_id, named(row.node), row.step)}")


def _source(source_id: str) -> NodeKey:
    return _key("Source", source_id)


def _source_id(row: Any) -> str:
    return f"urn:uuid:{uuid8('source', row.uri, row.checksum, row.etag)}"


def _object(row: Any) -> NodeKey:
    # The PROV documents' name of it, so that both can be asked together.
    return _key("Object", object_entity(row.object_uri, row.object_version))


def _item(row: Any) -> NodeKey:
    writing = uuid8("item-writing", row.collection_id, row.item_id, str(row.promotion_id))
    return _key("Item", f"urn:uuid:{writing}")


def _key(label: str, value: str) -> NodeKey:
    return NodeKey(label=label, name=LABELS[label].key, value=value)


def _time(column: Any) -> str | None:
    return None if column is None else rfc3339(column)
