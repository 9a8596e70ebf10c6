"""The graph export: every output a node, its lineage as edges, and loading it again changes nothing."""

from __future__ import annotations

import csv
import random
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.exports import graph as graph_module
from kfm_dagster.exports.graph import LABELS, RELATIONSHIPS, export_graph, literal
from kfm_dagster.idempotent_node.node import run_node
from kfm_dagster.ingest.nodes import operators
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster_tests.exports.conftest import AGAIN, AWKWARD, DAY, WORKED
from kfm_dagster_tests.exports.graph_engine import engine
from kfm_dagster_tests.idempotent_node import counting
from kfm_dagster_tests.integration import chain

pytestmark = pytest.mark.one_database

EMPTY_DAY = "2024-02-29"


@dataclass
class Graph:
    """Nodes with their properties, by label, key and value, and edges."""

    nodes: dict[tuple[str, str, str], dict[str, str]] = field(default_factory=dict)
    edges: set[tuple[tuple[str, str, str], str, tuple[str, str, str]]] = field(default_factory=set)


def exported(pipeline: Pipeline, folder: Path, registry: ContractRegistry | None = None) -> Graph:
    export_graph(pipeline.database, registry or pipeline.registry, folder=folder)
    return from_csv(folder)


def from_csv(folder: Path) -> Graph:
    """Load the bulk files as neo4j-admin does: an id twice, or an edge without its ends, is an error."""
    loaded, keys = Graph(), {}
    names = {label: properties[0] for label, properties in LABELS.items()}
    with (folder / "nodes.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            identity, label = row.pop("id:ID"), row.pop(":LABEL")
            assert identity not in keys
            keys[identity] = (label, names[label], row.pop(names[label]))
            loaded.nodes[keys[identity]] = {name: value for name, value in row.items() if value}
    with (folder / "edges.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            edge = (keys[row[":START_ID"]], row[":TYPE"], keys[row[":END_ID"]])
            assert edge not in loaded.edges
            loaded.edges.add(edge)
    return loaded


def derivations(graph: Graph) -> set[tuple[str, str]]:
    """Edges between artifacts, by the names of their nodes."""
    return {
        (graph.nodes[start]["node"], graph.nodes[end]["node"])
        for start, kind, end in graph.edges
        if kind == "WAS_DERIVED_FROM" and end[0] == "Artifact"
    }


def links(dataset: str, day: str) -> set[tuple[str, str]]:
    """What each operator's output is made from: the output of the one before it."""
    nodes = [f"{dataset}.{operator}@{day}" for operator in operators()]
    return set(zip(nodes[1:], nodes, strict=False))


@pytest.mark.clause("IEN-15")
def test_every_output_is_an_artifact_with_what_it_came_from_and_what_made_it(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    graph = exported(pipeline, tmp_path / "out")
    hashes = [intent.content_hash for intent in pipeline.nodes.intents.of_run(WORKED)]
    assert [key for key in graph.nodes if key[0] == "Artifact"] == [("Artifact", "content_hash", one) for one in hashes]
    assert derivations(graph) == links("nexrad-l2", DAY)
    made = {
        graph.nodes[start]["node"]: graph.nodes[end]
        for start, kind, end in graph.edges
        if kind == "WAS_GENERATED_BY" and start[0] == "Artifact"
    }
    assert made.keys() == {f"nexrad-l2.{operator}@{DAY}" for operator in operators()}
    assert all((activity["run_id"], activity["node"]) == (WORKED, node) for node, activity in made.items())
    sources = [graph.nodes[end]["uri"] for _, _, end in graph.edges if end[0] == "Source"]
    assert [uri.rpartition(".")[2] for uri in sources] == ["ndjson"]  # the listing that message_parse kept
    assert AGAIN not in str(graph)  # it made nothing


@pytest.mark.clause("IEN-15")
def test_loading_an_export_twice_or_in_any_order_gives_the_same_graph(
    pipeline: Pipeline, with_awkward_names: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = exported(pipeline, tmp_path)
    comment, *lines = (tmp_path / "graph.cypher").read_text(encoding="utf-8").splitlines()
    assert comment.startswith("//")
    shuffled = lines * 2
    random.Random(1).shuffle(shuffled)
    with engine() as one, engine() as other:
        one.load(tmp_path)
        other.load(tmp_path, "\n".join(shuffled))
        assert other.everything() == one.everything()
        # The bulk files say the same.
        for label, (key_name, *names) in LABELS.items():
            columns = ", ".join(f"n.{name}" for name in (key_name, *names))
            said = {key: found for (of, _, key), found in graph.nodes.items() if of == label}
            rows = [[key, *map(said[key].get, names)] for key in sorted(said)]
            assert one.ask(f"MATCH (n:{label}) RETURN {columns} ORDER BY n.{key_name}") == rows
        for kind in RELATIONSHIPS:
            [[edges]] = one.ask(f"MATCH (a)-[e:{kind}]->(b) RETURN count(e)")
            assert edges == sum(of == kind for _, of, _ in graph.edges)
    assert AWKWARD in {properties.get("node") for properties in graph.nodes.values()}
    # The same database gives the same bytes, in batches of any size.
    monkeypatch.setattr(graph_module, "BATCH", 2)
    assert export_graph(pipeline.database, pipeline.registry, folder=tmp_path / "again") == {
        "Artifact": 7, "Activity": 7, "Source": 2, "Object": 2, "Item": 2,
        "WAS_GENERATED_BY": 9, "WAS_DERIVED_FROM": 9, "USED": 2,
    }  # fmt: skip
    for file in graph_module.FILES:
        assert (tmp_path / "again" / file.name).read_bytes() == (tmp_path / file.name).read_bytes()


@pytest.mark.clause("IEN-15")
def test_a_newer_export_over_an_older_one_gives_the_newer_graph(pipeline: Pipeline, tmp_path: Path) -> None:
    with engine() as kept, engine() as fresh:
        old = exported(pipeline, tmp_path / "out")
        kept.load(tmp_path / "out")
        chain.put(tmp_path / "objects", chain.volumes(3))
        chain.run_chain(pipeline, "nexrad-l2", DAY, "22222222-0000-4000-8000-000000000003")
        new = exported(pipeline, tmp_path / "out")
        for one in (kept, fresh):
            one.load(tmp_path / "out")
        assert kept.everything() == fresh.everything()
    assert len(new.nodes) > len(old.nodes)
    outputs = [properties for (label, *_), properties in new.nodes.items() if label == "Artifact"]
    assert sum("valid_to" in properties for properties in outputs) == len(operators())


@pytest.mark.clause("IEN-15")
def test_content_that_came_back_is_the_newest_again(pipeline: Pipeline, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    with engine() as kept, engine() as fresh:
        for lines, ended in ((1, 0), (2, 1), (1, 1)):
            file.write_text("line\n" * lines)
            node = counting.CountLines(files=[file], folder=tmp_path / "counts")
            run_node(pipeline.nodes, node, run_id=counting.RUN, code=counting.CODE)
            graph = exported(pipeline, tmp_path / "out")
            kept.load(tmp_path / "out")
            assert sum("valid_to" in properties for properties in graph.nodes.values()) == ended
        fresh.load(tmp_path / "out")
        assert kept.everything() == fresh.everything()


@pytest.mark.clause("IEN-15")
def test_outputs_with_equal_bytes_keep_lineages_of_their_own(pipeline: Pipeline, tmp_path: Path) -> None:
    # A day without objects gives the same empty artifact at every step and in every dataset.
    for dataset in ("nexrad-l2", "hrrr"):
        chain.run_chain(pipeline, dataset, EMPTY_DAY, "22222222-0000-4000-8000-000000000003")
    graph = exported(pipeline, tmp_path / "out")
    expected = links("nexrad-l2", DAY) | links("nexrad-l2", EMPTY_DAY) | links("hrrr", EMPTY_DAY)
    assert derivations(graph) == expected


@pytest.mark.clause("RSP-13")
def test_a_governed_dataset_is_not_named(pipeline: Pipeline, governed: ContractRegistry, tmp_path: Path) -> None:
    graph = exported(pipeline, tmp_path / "out", governed)
    assert f"{governed['nexrad-l2'].public_id}.settle@{DAY}" in {one.get("node") for one in graph.nodes.values()}
    # An Item stands in the public catalog under its Collection's name, which here is the dataset's.
    public = {"collection": "nexrad-l2", "path": "nexrad-l2/"}
    for (label, *_), properties in graph.nodes.items():
        for name, value in properties.items():
            if not (label == "Item" and value.startswith(public.get(name, "\0"))):
                assert "nexrad-l2" not in value


def test_what_fails_halfway_leaves_the_files_that_stood(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_graph(pipeline.database, pipeline.registry, folder=tmp_path / "out")
    before = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    monkeypatch.setattr(graph_module, "merge_node", Mock(side_effect=[*["MERGE (half"] * 3, OSError("it is full")]))
    with pytest.raises(ConfigurationError, match="it is full"):
        export_graph(pipeline.database, pipeline.registry, folder=tmp_path / "out")
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == before


def test_a_literal_is_one_line_that_an_engine_reads_back_as_the_text() -> None:
    with engine() as one:

        @settings(deadline=None)
        @given(st.text())
        def reads_back(text: str) -> None:
            assert one.ask(f"RETURN {literal(text)}") == [[text]]
            assert len(literal(text).splitlines()) == 1

        reads_back()
