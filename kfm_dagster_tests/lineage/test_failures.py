"""An attempt that fails is a FAIL event under its unit's wal_id, once, whatever failed it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.ingest.nodes import Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.lineage.openlineage import Event
from kfm_dagster.lineage.store import Lineage
from kfm_dagster_tests.integration import chain
from kfm_dagster_tests.lineage.schemas import facets, validate
from kfm_dagster_tests.lineage.test_openlineage_events import OFFICIAL
from kfm_dagster_tests.transactions import own_tx

DATASET = "nexrad-l2"
RUNS = [f"{number}1111111-1111-4111-8111-111111111111" for number in range(3)]


def work(pipeline: Pipeline, objects: Path) -> None:
    """A unit of which the object is missing, beside one that succeeds, and one whose run dies."""
    good, bad, lost = chain.volumes(3)
    chain.put(objects, [good, chain.missing(bad), lost])
    chain.take(pipeline, chain.announce([good.event(), bad.event()], registry=pipeline.registry))
    chain.run_chain(pipeline, DATASET, chain.DAY.isoformat(), RUNS[0], Source.LEDGER)
    chain.take(pipeline, chain.announce([lost.event()], registry=pipeline.registry))
    dies_at = chain.Failpoint(operator="stac_register", point="computed")
    with pytest.raises(chain.CrashError):
        chain.run_chain(pipeline, DATASET, chain.DAY.isoformat(), RUNS[1], Source.LEDGER, dies_at=dies_at)
    own_tx(pipeline.ledger).release_lost(run_ids=[RUNS[1]])


def published(pipeline: Pipeline, root: Path) -> list[Event]:
    Lineage(pipeline.database, str(root), public=pipeline.registry.public_id).publish_staged()
    lines = (line for file in root.glob("failures/**/*.ndjson") for line in file.read_text().splitlines())
    return [json.loads(line) for line in lines]


@pytest.mark.clause("RSP-16", "OPR-12")
def test_each_failed_attempt_is_a_start_and_a_fail_that_fit_every_schema(
    pipeline: Pipeline, tmp_path: Path, official: dict[str, Any], schemas: dict[str, Any]
) -> None:
    work(pipeline, tmp_path / "objects")
    events = published(pipeline, tmp_path / "lineage")
    records = {record.wal_id: record for record in own_tx(pipeline.ledger).find()}
    ends = {event["run"]["facets"]["kfmWal"]["wal_id"]: event for event in events if event["eventType"] == "FAIL"}
    failed = {wal_id: record for wal_id, record in records.items() if record.status != "succeeded"}
    assert len(failed) == 2
    assert ends.keys() == failed.keys()
    codes = {"missing_object": RUNS[0], "worker_lost": RUNS[1]}
    assert {event["run"]["facets"]["errorMessage"]["message"] for event in ends.values()} == codes.keys()
    for wal_id, event in ends.items():
        mine = event["run"]["facets"]
        run_id = codes[mine["kfmWal"]["last_error_code"]]
        assert (mine["kfmRunState"]["outcome"], mine["kfmRunState"]["run_id"]) == ("failed", run_id)
        [given] = event["inputs"]
        assert f"{given['namespace']}/{given['name']}" == failed[wal_id].object_uri
        own = [one for one in events if one["run"]["runId"] == event["run"]["runId"]]
        [start] = [one for one in own if one["eventType"] == "START"]
        assert start["eventTime"] <= event["eventTime"]
        for one in (start, event):
            validate(OFFICIAL, one, official)
            for facet in facets(one).values():
                validate(facet["_schemaURL"], facet, schemas if "kfm.dev" in facet["_schemaURL"] else official)


@pytest.mark.clause("RSP-16")
def test_a_failure_is_published_once_however_many_publish(pipeline: Pipeline, tmp_path: Path) -> None:
    work(pipeline, tmp_path / "objects")
    root = tmp_path / "lineage"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: published(pipeline, root), range(4)))
    events = published(pipeline, root)
    assert len(events) == len({(event["run"]["runId"], event["eventType"]) for event in events}) == 4
    # Failed again, the unit has another run of OpenLineage.
    own_tx(pipeline.ledger).requeue([record.wal_id for record in own_tx(pipeline.ledger).find(code="missing_object")])
    chain.run_chain(pipeline, DATASET, chain.DAY.isoformat(), RUNS[2], Source.LEDGER)
    ends = [event["run"]["facets"] for event in published(pipeline, root) if event["eventType"] == "FAIL"]
    attempts = [(end["kfmWal"]["attempt"], end["kfmRunState"]["run_id"]) for end in ends]
    assert sorted(attempts) == [(1, RUNS[0]), (1, RUNS[1]), (2, RUNS[2])]


@pytest.mark.clause("RSP-16")
def test_a_collection_names_the_run_that_wrote_its_newest_item(pipeline: Pipeline, tmp_path: Path) -> None:
    first, second = chain.volumes(2)
    path = tmp_path / "home" / "catalog" / pipeline.registry[DATASET].stac.collection / "collection.json"

    def written_by() -> Any:
        return json.loads(path.read_text())["kfm:run_state"]

    for run_id, item in zip(RUNS, (first, second), strict=False):
        chain.put(tmp_path / "objects", [item])
        chain.run_chain(pipeline, DATASET, chain.DAY.isoformat(), run_id)
        assert written_by() == {"dataset_id": f"{DATASET}.stac_register", "run_id": run_id}
    # What is taken back was not written, as far as the catalog tells.
    own_tx(pipeline.catalog).undo(DATASET, RUNS[1])
    assert written_by()["run_id"] == RUNS[0]
