"""The graph export: outputs as nodes, lineage as edges, loaded and queried in a real engine."""

from __future__ import annotations

import csv
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import ladybug
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.exports import graph as graph_module
from kfm_dagster.exports.graph import LABELS, RELATIONSHIPS, export_graph, literal
from kfm_dagster.idempotent_node.node import run_node
from kfm_dagster.ingest.chain import roll_back
from kfm_dagster.ingest.nodes import Settle, Source, StacRegister, operators
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster_tests.exports.conftest import AWKWARD, DAY, FIRST_RUN, SECOND_RUN
from kfm_dagster_tests.idempotent_node import counting
from kfm_dagster_tests.integration import chain
from kfm_dagster_tests.integration.test_run_rollback import WHY, renumbered, run_until

EMPTY_DAY = "2024-02-29"


@dataclass
class Graph:
    """The edges, and the properties of each node by its label, key name and key value."""

    nodes: dict[tuple[str, str, str], dict[str, str]] = field(default_factory=dict)
    edges: set[tuple[tuple[str, str, str], str, tuple[str, str, str]]] = field(default_factory=set)


def exported(pipeline: Pipeline, folder: Path, registry: ContractRegistry | None = None) -> Graph:
    export_graph(pipeline.database, registry or pipeline.registry, folder=folder)
    return from_csv(folder)


def from_csv(folder: Path) -> Graph:
    """Load the bulk files as strictly as neo4j-admin: unique ids, no edge without its ends."""
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
    """Return the edges between artifacts, by the names of their nodes."""
    return {
        (graph.nodes[start]["node"], graph.nodes[end]["node"])
        for start, kind, end in graph.edges
        if kind == "WAS_DERIVED_FROM" and end[0] == "Artifact"
    }


def links(dataset: str, day: str) -> set[tuple[str, str]]:
    """Return the derivation of each operator's output from the previous operator's."""
    nodes = [f"{dataset}.{operator}@{day}" for operator in operators()]
    return set(zip(nodes[1:], nodes, strict=False))


@pytest.mark.one_database
@pytest.mark.clause("IEN-15")
def test_every_output_is_an_artifact_with_its_derivation_and_activity(pipeline: Pipeline, tmp_path: Path) -> None:
    graph = exported(pipeline, tmp_path / "out")
    hashes = [intent.content_hash for intent in pipeline.nodes.intents.of_run(FIRST_RUN)]
    assert [key for key in graph.nodes if key[0] == "Artifact"] == [
        ("Artifact", "content_hash", content_hash) for content_hash in hashes
    ]
    assert derivations(graph) == links("nexrad-l2", DAY)
    activities = {
        graph.nodes[start]["node"]: graph.nodes[end]
        for start, kind, end in graph.edges
        if kind == "WAS_GENERATED_BY" and start[0] == "Artifact"
    }
    assert activities.keys() == {f"nexrad-l2.{operator}@{DAY}" for operator in operators()}
    assert all((activity["run_id"], activity["node"]) == (FIRST_RUN, node) for node, activity in activities.items())
    sources = [graph.nodes[end]["uri"] for _, _, end in graph.edges if end[0] == "Source"]
    assert [uri.rpartition(".")[2] for uri in sources] == ["ndjson"]  # the listing that message_parse stored
    assert SECOND_RUN not in str(graph)  # this run has no output


@pytest.mark.one_database
@pytest.mark.clause("IEN-15")
def test_loading_an_export_twice_or_in_any_order_gives_the_same_graph(
    pipeline: Pipeline, with_awkward_names: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = exported(pipeline, tmp_path)
    comment, *lines = (tmp_path / "graph.cypher").read_text(encoding="utf-8").splitlines()
    assert comment.startswith("//")
    shuffled = lines * 2
    random.Random(1).shuffle(shuffled)
    with engine() as first, engine() as second:
        first.load(tmp_path)
        second.load(tmp_path, "\n".join(shuffled))
        assert second.everything() == first.everything()
        # The bulk files have the same nodes and edges.
        for label, (key_name, *names) in LABELS.items():
            columns = ", ".join(f"n.{name}" for name in (key_name, *names))
            listed = {key: node for (node_label, _, key), node in graph.nodes.items() if node_label == label}
            rows = [[key, *map(listed[key].get, names)] for key in sorted(listed)]
            assert first.ask(f"MATCH (n:{label}) RETURN {columns} ORDER BY n.{key_name}") == rows
        for kind in RELATIONSHIPS:
            [[edges]] = first.ask(f"MATCH (a)-[e:{kind}]->(b) RETURN count(e)")
            assert edges == sum(edge_kind == kind for _, edge_kind, _ in graph.edges)
    assert AWKWARD in {properties.get("node") for properties in graph.nodes.values()}
    # The same database gives the same bytes, in batches of any size.
    monkeypatch.setattr(graph_module, "BATCH", 2)
    assert export_graph(pipeline.database, pipeline.registry, folder=tmp_path / "again") == {
        "Artifact": 7, "Activity": 7, "Source": 2, "Object": 2, "Item": 2,
        "WAS_GENERATED_BY": 9, "WAS_DERIVED_FROM": 9, "USED": 2,
    }  # fmt: skip
    for name in graph_module.FILES:
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / name).read_bytes()


@pytest.mark.one_database
@pytest.mark.clause("IEN-15")
def test_content_that_returns_becomes_current_again(pipeline: Pipeline, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    with engine() as updated, engine() as fresh:
        for lines, ended in ((1, 0), (2, 1), (1, 1)):
            file.write_text("line\n" * lines)
            node = counting.CountLines(files=[file], folder=tmp_path / "counts")
            run_node(pipeline.nodes, node, run_id=counting.RUN, code=counting.CODE)
            graph = exported(pipeline, tmp_path / "out")
            updated.load(tmp_path / "out")
            assert sum("valid_to" in properties for properties in graph.nodes.values()) == ended
        fresh.load(tmp_path / "out")
        assert updated.everything() == fresh.everything()


@pytest.mark.one_database
@pytest.mark.clause("IEN-15")
def test_outputs_with_equal_bytes_have_separate_lineages(pipeline: Pipeline, tmp_path: Path) -> None:
    # For a day without objects, the artifacts of all steps and datasets have equal bytes.
    for dataset in ("nexrad-l2", "hrrr"):
        chain.run_chain(pipeline, dataset, EMPTY_DAY, "22222222-0000-4000-8000-000000000003")
    graph = exported(pipeline, tmp_path / "out")
    expected = links("nexrad-l2", DAY) | links("nexrad-l2", EMPTY_DAY) | links("hrrr", EMPTY_DAY)
    assert derivations(graph) == expected


@pytest.mark.one_database
@pytest.mark.clause("RSP-13")
def test_the_graph_does_not_name_a_governed_dataset(
    pipeline: Pipeline, governed: ContractRegistry, tmp_path: Path
) -> None:
    graph = exported(pipeline, tmp_path / "out", governed)
    assert f"{governed['nexrad-l2'].public_id}.settle@{DAY}" in {
        properties.get("node") for properties in graph.nodes.values()
    }
    # An Item has its Collection's public name, which here is the dataset's name.
    public = {"collection": "nexrad-l2", "path": "nexrad-l2/"}
    for (label, *_), properties in graph.nodes.items():
        for name, value in properties.items():
            if not (label == "Item" and value.startswith(public.get(name, "\0"))):
                assert "nexrad-l2" not in value


@pytest.mark.one_database
def test_an_export_that_fails_leaves_the_earlier_files(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_graph(pipeline.database, pipeline.registry, folder=tmp_path / "out")
    before = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    monkeypatch.setattr(graph_module, "merge_node", Mock(side_effect=[*["MERGE (half"] * 3, OSError("it is full")]))
    with pytest.raises(ConfigurationError, match="it is full"):
        export_graph(pipeline.database, pipeline.registry, folder=tmp_path / "out")
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == before


@pytest.mark.one_database
def test_an_engine_reads_each_text_back_from_its_literal_which_is_one_line() -> None:
    with engine() as database:

        @settings(deadline=None)
        @given(st.text())
        def reads_back(text: str) -> None:
            assert database.ask(f"RETURN {literal(text)}") == [[text]]
            assert len(literal(text).splitlines()) == 1

        reads_back()


LATER = "33333333-0000-4000-8000-000000000003"
REVISED, SAME, NEW = chain.volumes(3)
"""FIRST_RUN registered the first two; a later run registers another version of the first, and the third."""


def load(pipeline: Pipeline, folder: Path, *engines: Engine) -> None:
    export_graph(pipeline.database, pipeline.registry, folder=folder)
    for database in engines:
        database.load(folder)


def item_of(item: chain.StoredObject) -> str:
    return f"nexrad-l2/{Path(item.key).name}"


def answers(database: Engine) -> list[list[str]]:
    return [database.items_of(item.uri) for item in (REVISED, SAME, NEW)]


def history(database: Engine, item: chain.StoredObject) -> list[str]:
    """Return the states of an object's Items; check that exactly the current Item has no end of validity."""
    rows = database.ask(
        "MATCH (i:Item)-[:WAS_DERIVED_FROM]->(:Object {uri: $uri}) RETURN i.state, i.valid_to IS NULL ORDER BY i.state",
        uri=item.uri,
    )
    assert all(open_end == (state == "current") for state, open_end in rows)
    return [state for state, _ in rows]


@pytest.mark.clause("IEN-15")
def test_an_engine_returns_the_items_of_an_object_also_after_a_rollback(pipeline: Pipeline, tmp_path: Path) -> None:
    with engine() as updated:
        load(pipeline, tmp_path / "first", updated)
        before = [[item_of(REVISED)], [item_of(SAME)], []]
        assert answers(updated) == before

        later = [renumbered(REVISED), NEW]
        chain.put(tmp_path / "objects", later)
        # Event times a minute ahead are later than those of the listed files.
        chain.notify(pipeline, *later, event_time=datetime.now(UTC) + timedelta(minutes=1))
        failed = run_until(pipeline, Settle.operator, point="computed", run_id=LATER)
        load(pipeline, tmp_path / "between", updated)
        # The query is by the object's URI, so it returns the new version's Item, which has replaced the old Item.
        assert answers(updated) == [[item_of(REVISED)], [item_of(SAME)], [item_of(NEW)]]
        assert [history(updated, item) for item in (REVISED, NEW)] == [["current", "replaced"], ["current"]]

        assert roll_back(failed, WHY) is not None
        with engine() as fresh:
            load(pipeline, tmp_path / "after", updated, fresh)
            for database in (updated, fresh):
                assert answers(database) == before
                assert [history(database, item) for item in (REVISED, NEW)] == [["current", "withdrawn"], ["withdrawn"]]

        chain.run_chain(pipeline, "nexrad-l2", DAY, "44444444-0000-4000-8000-000000000004", Source.LEDGER)
        load(pipeline, tmp_path / "at-last", updated)
        assert answers(updated) == [[item_of(REVISED)], [item_of(SAME)], [item_of(NEW)]]
        assert history(updated, REVISED) == ["current", "replaced", "withdrawn"]


@pytest.mark.clause("IEN-15")
def test_an_engine_returns_run_artifacts_and_objects_of_an_item(
    pipeline: Pipeline, with_awkward_names: None, tmp_path: Path
) -> None:
    with engine() as database:
        load(pipeline, tmp_path / "out", database)
        generated = database.ask(
            "MATCH (i:Item)-[:WAS_GENERATED_BY]->(run:Activity)<-[:WAS_GENERATED_BY]-(output:Artifact) "
            "RETURN i.stac_item_id, run.run_id, run.node, output.uri ORDER BY i.stac_item_id"
        )
        node = f"nexrad-l2.{StacRegister.operator}@{DAY}"
        [parquet] = {uri for *_, uri in generated}
        assert generated == [[Path(item.key).name, FIRST_RUN, node, parquet] for item in (REVISED, SAME)]
        # Follow the derivations of an output back to the first node's activity, which used the objects.
        used = database.ask(
            f"MATCH (:Artifact {{uri: $uri}})-[:WAS_DERIVED_FROM*0..{len(operators())}]->(:Artifact)"
            "-[:WAS_GENERATED_BY]->(:Activity)-[:USED]->(o:Object) RETURN DISTINCT o.uri ORDER BY o.uri",
            uri=parquet,
        )
        assert used == [[REVISED.uri], [SAME.uri]]
        assert [AWKWARD] in database.ask("MATCH (n:Artifact) RETURN n.node")


DOCUMENT = Path(__file__).parents[2] / "docs" / "explain-and-export.md"
[EXAMPLE] = re.findall(r"```cypher\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
QUESTION = re.sub(r"'s3://[^']*'", "$uri", EXAMPLE)
"""The document's query for the Items that came from an object, with the object's address as parameter."""


class Engine:
    """A graph database in memory."""

    def __init__(self, connection: ladybug.Connection) -> None:
        self._connection = connection

    def load(self, folder: Path, statements: str | None = None) -> None:
        """Run the export's schema, then the export's statements or, instead of these, `statements`."""
        self._connection.execute((folder / "schema.cypher").read_text(encoding="utf-8"))
        self._connection.execute(statements or (folder / "graph.cypher").read_text(encoding="utf-8"))

    def everything(self) -> list[list[list[Any]]]:
        """Return every node with its properties, and every edge, sorted."""
        nodes = [self.ask(f"MATCH (n:{label}) RETURN n.* ORDER BY n.{key}") for label, (key, *_) in LABELS.items()]
        edges = [self.ask(f"MATCH (a)-[e:{kind}]->(b) RETURN a.*, b.*") for kind in RELATIONSHIPS]
        return [*nodes, *(sorted(rows, key=str) for rows in edges)]

    def ask(self, query: str, **values: str) -> list[list[Any]]:
        """Return the rows of a query's result."""
        result = self._connection.execute(query, values)
        return [list(row) for row in result.get_all()]

    def items_of(self, uri: str) -> list[str]:
        """Return the Items that came from the object, as COLLECTION/ID."""
        return [f"{collection}/{item_id}" for collection, item_id in self.ask(QUESTION, uri=uri)]


@contextmanager
def engine() -> Iterator[Engine]:
    """Open an empty database. Its memory is bounded, because the default is 80 % of the machine's memory."""
    with (
        ladybug.Database(":memory:", buffer_pool_size=128 << 20, max_num_threads=1, max_db_size=1 << 30) as database,
        ladybug.Connection(database) as connection,
    ):
        yield Engine(connection)
