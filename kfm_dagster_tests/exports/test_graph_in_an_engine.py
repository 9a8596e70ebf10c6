"""The exported graph in a real engine, loaded as it is: which Items came from this object, whatever happened since."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kfm_dagster.exports.graph import export_graph
from kfm_dagster.ingest.chain import roll_back
from kfm_dagster.ingest.nodes import Settle, Source, StacRegister, operators
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster_tests.exports.conftest import AWKWARD, DAY, WORKED
from kfm_dagster_tests.exports.graph_engine import QUESTION, Engine, engine
from kfm_dagster_tests.integration import chain
from kfm_dagster_tests.integration.test_run_rollback import WHY, renumbered, run_until

LATER = "33333333-0000-4000-8000-000000000003"
REVISED, SAME, NEW = chain.volumes(3)
"""Of the first two the run WORKED made Items; a later run has another version of the first, and the third."""


def load(pipeline: Pipeline, folder: Path, *engines: Engine) -> None:
    export_graph(pipeline.database, pipeline.registry, folder=folder)
    for one in engines:
        one.load(folder)


def item_of(item: chain.StoredObject) -> str:
    return f"nexrad-l2/{Path(item.key).name}"


def announced_later(pipeline: Pipeline, root: Path, items: list[chain.StoredObject]) -> None:
    """New versions come after the files that a listing found, which are as old as the test."""
    chain.put(root, items)
    events = [item.event(event_time=datetime.now(UTC) + timedelta(minutes=1)) for item in items]
    chain.take(pipeline, chain.announce(events, registry=pipeline.registry))


def answers(one: Engine) -> list[list[str]]:
    return [one.items_of(item.uri) for item in (REVISED, SAME, NEW)]


def history(one: Engine, item: chain.StoredObject) -> list[str]:
    """States of every Item that was made of an object, and whether each says when it ended."""
    rows = one.ask(
        "MATCH (i:Item)-[:WAS_DERIVED_FROM]->(:Object {uri: $uri}) RETURN i.state, i.valid_to IS NULL ORDER BY i.state",
        uri=item.uri,
    )
    assert all(open_end == (state == "current") for state, open_end in rows)
    return [state for state, _ in rows]


@pytest.mark.clause("IEN-15")
def test_an_engine_answers_which_items_came_from_an_object_also_after_a_rollback(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    with engine() as kept:
        load(pipeline, tmp_path / "first", kept)
        before = [[item_of(REVISED)], [item_of(SAME)], []]
        assert answers(kept) == before

        announced_later(pipeline, tmp_path / "objects", [renumbered(REVISED), NEW])
        failed = run_until(pipeline, Settle.operator, point="computed", run_id=LATER)
        load(pipeline, tmp_path / "between", kept)
        # The new version's Item stands instead of the old one's: an object is asked for by its place.
        assert answers(kept) == [[item_of(REVISED)], [item_of(SAME)], [item_of(NEW)]]
        assert [history(kept, item) for item in (REVISED, NEW)] == [["current", "replaced"], ["current"]]

        assert roll_back(failed, WHY) is not None
        with engine() as fresh:
            load(pipeline, tmp_path / "after", kept, fresh)
            for one in (kept, fresh):
                assert answers(one) == before
                assert [history(one, item) for item in (REVISED, NEW)] == [["current", "withdrawn"], ["withdrawn"]]

        chain.run_chain(pipeline, "nexrad-l2", DAY, "44444444-0000-4000-8000-000000000004", Source.LEDGER)
        load(pipeline, tmp_path / "at-last", kept)
        assert answers(kept) == [[item_of(REVISED)], [item_of(SAME)], [item_of(NEW)]]
        assert history(kept, REVISED) == ["current", "replaced", "withdrawn"]


@pytest.mark.clause("IEN-15")
def test_an_engine_leads_from_an_item_over_the_run_that_made_it_to_artifacts_and_objects(
    pipeline: Pipeline, with_awkward_names: None, tmp_path: Path
) -> None:
    with engine() as one:
        load(pipeline, tmp_path / "out", one)
        made = one.ask(
            "MATCH (i:Item)-[:WAS_GENERATED_BY]->(run:Activity)<-[:WAS_GENERATED_BY]-(output:Artifact) "
            "RETURN i.stac_item_id, run.run_id, run.node, output.uri ORDER BY i.stac_item_id"
        )
        node = f"nexrad-l2.{StacRegister.operator}@{DAY}"
        [parquet] = {uri for *_, uri in made}
        assert made == [[Path(item.key).name, WORKED, node, parquet] for item in (REVISED, SAME)]
        # From an output over all that it was made from back to the first node's, which took up the objects.
        used = one.ask(
            f"MATCH (:Artifact {{uri: $uri}})-[:WAS_DERIVED_FROM*0..{len(operators())}]->(:Artifact)"
            "-[:WAS_GENERATED_BY]->(:Activity)-[:USED]->(o:Object) RETURN DISTINCT o.uri ORDER BY o.uri",
            uri=parquet,
        )
        assert used == [[REVISED.uri], [SAME.uri]]
        assert [AWKWARD] in one.ask("MATCH (n:Artifact) RETURN n.node")


def test_the_document_asks_as_it_is_tested() -> None:
    document = (Path(__file__).parents[2] / "docs" / "explain-and-export.md").read_text(encoding="utf-8")

    def words(text: str) -> list[str]:
        return re.sub(r"\$uri|'s3://[^']*'", "URI", text).split()

    blocks = [words(block) for block in re.findall(r"```cypher\n(.*?)```", document, re.DOTALL)]
    assert words(QUESTION) in blocks
