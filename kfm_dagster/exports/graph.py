"""Graph export: every output as (:Artifact {content_hash}), with what it was made from and what made it (IEN-15).

    (:Artifact)-[:WAS_DERIVED_FROM]->(:Artifact | :Source)      (:Artifact)-[:WAS_GENERATED_BY]->(:Activity)

An Activity is a node in a run, a Source an input that no node here made. One state of the database is read, as a
stream: memory does not grow with it. Belongs here: which nodes and edges there are. Does not belong here: their text
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

from kfm_dagster.contracts.identity import rfc3339, uuid8
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.exports.atomic_files import ExportFile, atomic_files
from kfm_dagster.exports.cypher import CSV_EDGE, CSV_NODE, CsvRows, GraphEdge, GraphNode, NodeKey, csv_header
from kfm_dagster.storage.database import Database, Transaction

BATCH = 1_000
"""Rows that are fetched at a time."""
NODE_COLUMNS = (
    *CSV_NODE,
    *("content_hash", "activity_id", "source_id", "node", "step", "uri", "sha256", "outcome", "valid_from", "valid_to"),
    *("run_id", "started_at", "ended_at", "checksum", "etag"),
)
FILES = (
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
        statements, nodes_file, edges_file = (TextIOWrapper(file, encoding="utf-8", newline="") for file in opened)
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
        for file in (statements, nodes_file, edges_file):
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


def _edges(tx: Transaction, named: Callable[[str], str]) -> Iterator[GraphEdge]:
    for row in tx.run("exports.generations"):
        yield GraphEdge(kind="WAS_GENERATED_BY", start=_artifact(row.content_hash), end=_activity(row, named))
    for row in tx.run("exports.inputs"):
        origin = _artifact(row.source_hash) if row.source_hash else _source(_source_id(row))
        yield GraphEdge(kind="WAS_DERIVED_FROM", start=_artifact(row.content_hash), end=origin)


def _artifact(content_hash: str) -> NodeKey:
    return NodeKey(label="Artifact", name="content_hash", value=content_hash)


def _activity(row: Any, named: Callable[[str], str]) -> NodeKey:
    identity = uuid8("activity", row.run_id, named(row.node), row.step)
    return NodeKey(label="Activity", name="activity_id", value=f"urn:uuid:{identity}")


def _source(source_id: str) -> NodeKey:
    return NodeKey(label="Source", name="source_id", value=source_id)


def _source_id(row: Any) -> str:
    return f"urn:uuid:{uuid8('source', row.uri, row.checksum, row.etag)}"


def _time(column: Any) -> str | None:
    return None if column is None else rfc3339(column)
