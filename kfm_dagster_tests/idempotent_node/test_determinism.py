"""Two runs of a node on equal inputs give the same bytes and hash."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kfm_dagster.idempotent_node.node import content_of, run_node
from kfm_dagster.idempotent_node.transaction import IdempotentNodes, Output
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.idempotent_node.counting import CODE, RUN, CountLines, begin, open_nodes, rebuilt


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.clause("IEN-10")
def test_two_runs_on_the_same_input_write_the_same_bytes(node: CountLines, tmp_path: Path) -> None:
    results: list[tuple[Output, dict[str, bytes]]] = []
    for number in range(2):
        database = Database.open(f"sqlite:///{tmp_path / f'{number}.db'}")
        # The order of inputs, the folder and the run are not part of the content.
        copy = replace(node, files=list(node.files)[:: 1 - 2 * number], folder=tmp_path / f"out-{number}")
        result = run_node(open_nodes(database), copy, run_id=f"{number}" + RUN[1:], code=CODE)
        results.append((result.output, contents(copy.folder)))
        database.dispose()
    assert results[0] == results[1]


@pytest.mark.clause("IEN-05", "IEN-10")
def test_a_node_created_from_its_payload_has_the_same_content(node: CountLines, nodes: IdempotentNodes) -> None:
    content = content_of(node, code=CODE, run_id=RUN)
    intent = begin(nodes, node)
    again = content_of(rebuilt(intent), code=CODE, run_id=RUN)
    assert again.content_hash == intent.content_hash == content.content_hash
    assert again.payload() == intent.payload
    # The payload has the code, so that a replay by other code can be refused.
    assert intent.payload["code"] == {"sha": CODE.code_sha, "lockfile": CODE.lockfile_hash}
    assert rebuilt(intent).transform() == node.transform()
