"""`node_output.lineage`: what each output of the chain was made from, under the digest by which that was stored."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.ingest.nodes import Source, operators
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.policy import ReplayReason
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster_tests.integration.chain import DAY, announce, missing, put, run_chain, take, volumes
from kfm_dagster_tests.transactions import own_tx

NODES = [f"nexrad-l2.{operator}@{DAY}" for operator in operators()]


def lineages(pipeline: Pipeline, run_id: str) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Of each stage of a run, in order: its output, and what that was made from."""
    found = []
    for intent, node in zip(pipeline.nodes.intents.of_run(run_id), NODES, strict=True):
        with pipeline.database.snapshot() as tx:
            output = pipeline.nodes.output(intent.content_hash, tx=tx)
        assert output is not None
        assert output.lineage is not None
        made, *sources = output.lineage["prov"]
        assert (made["kfm:node"], made["id"]) == (node, f"urn:sha256:{output.record['artifact_sha256']}")
        assert sorted(source["id"] for source in sources) == made["wasDerivedFrom"]
        found.append((made, sources))
    return found


@pytest.mark.clause("IEN-16")
@pytest.mark.parametrize("source", [Source.LEDGER, Source.LISTING])
def test_every_output_of_a_run_names_the_one_before_it_and_the_first_one_what_it_claimed(
    pipeline: Pipeline, objects: Path, source: Source
) -> None:
    items = volumes(3)
    put(objects, items[:2])
    events = [items[0].event(), items[1].event(), missing(items[2]).event()]
    take(pipeline, announce(events, registry=pipeline.registry))
    run_chain(pipeline, "nexrad-l2", DAY.isoformat(), "run", source)

    first, *others = lineages(pipeline, "run")
    for (before, _), (made, _) in zip([first, *others], others, strict=False):
        assert made["wasDerivedFrom"] == [before["id"]]
    # A record begins with version 1, and its claim makes it 2.
    claimed = "".join(sorted(f"{record.wal_id} 2\n" for record in own_tx(pipeline.ledger).find(limit=10)))
    ledger = {"id": f"urn:sha256:{hashlib.sha256(claimed.encode()).hexdigest()}", "kfm:uri": f"ledger:nexrad-l2@{DAY}"}
    assert claimed.count("\n") == 3
    names = {entry["kfm:uri"]: entry["id"] for entry in first[1]}
    assert names.pop(ledger["kfm:uri"]) == ledger["id"]
    inputs = pipeline.nodes.intents.of_run("run")[0].payload["inputs"]
    asked = {entry["uri"]: f"urn:sha256:{entry['checksum']}" for entry in inputs if entry["uri"] != ledger["kfm:uri"]}
    assert names == asked
    assert len(names) == {Source.LEDGER: 0, Source.LISTING: 1}[source]


@pytest.mark.clause("IEN-16")
def test_what_failed_and_was_tried_again_was_made_from_its_later_attempt(pipeline: Pipeline, objects: Path) -> None:
    items = volumes(2)
    put(objects, items[:1])
    take(pipeline, announce([item.event() for item in items], registry=pipeline.registry))
    run_chain(pipeline, "nexrad-l2", DAY.isoformat(), "run", Source.LEDGER)
    put(objects, items)
    own_tx(pipeline.ledger).requeue(
        [own_tx(pipeline.ledger).find(status=Status.FAILED, limit=1)[0].wal_id], reason=ReplayReason.RETRY
    )
    run_chain(pipeline, "nexrad-l2", DAY.isoformat(), "again", Source.LEDGER)
    before, after = (lineages(pipeline, run)[0][0]["wasDerivedFrom"] for run in ("run", "again"))
    assert set(before).isdisjoint(after)
