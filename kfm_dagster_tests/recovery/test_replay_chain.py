"""Replays through the real chain: what was repaired is as if it had never failed, and what differs is seen."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.recovery.replay.runs import ReplayState
from kfm_dagster.recovery.replay.selection import Selection, selection_of
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import (
    DAY,
    StoredObject,
    missing,
    notify_each,
    open_pipeline,
    put,
    run_pending,
    volumes,
)
from kfm_dagster_tests.recovery.replays import PERSON, selection
from kfm_dagster_tests.transactions import own_tx

PARTITION = DAY.isoformat()
COUNT = 3


def ingest(pipeline: Pipeline, items: list[StoredObject]) -> None:
    notify_each(pipeline, *items)
    run_pending(pipeline, "run-1")


def wanted(*status: str, mode: str = "failed-only", **options: Any) -> Selection:
    """A selection of the volumes' units by their time."""
    month = {"start": "2025-04-01T00:00:00Z", "end": "2025-05-01T00:00:00Z"}
    options = {"allow_repair_and_replace": mode != "failed-only", **options}
    return selection(mode=mode, filters={"status": list(status), "event_time": month}, options=options)


def left_by(pipeline: Pipeline) -> dict[str, Any]:
    """What readers of the catalog and of the provenance see."""
    told, edges = traces.told_once(pipeline)
    return {
        "catalog": traces.catalog_tree(Path(pipeline.settings.catalog)),
        "completed": {event: count for event, count in told.items() if event[0] == "COMPLETE"},
        "edges": edges,
    }


@pytest.mark.clause("WAL-17", "RPL-05")
def test_what_a_replay_repaired_is_as_if_it_had_never_failed(pipeline: Pipeline, objects: Path, tmp_path: Path) -> None:
    items = volumes(COUNT)
    put(objects, [missing(items[0]), *items[1:]])
    ingest(pipeline, [missing(items[0]), *items[1:]])
    assert traces.statuses(pipeline) == {"failed": 1, "succeeded": COUNT - 1}
    [failing] = [record for record in traces.records(pipeline).values() if record.status == "failed"]

    put(objects, items)
    engine = ReplayEngine(pipeline=pipeline)
    run = engine.start(wanted("failed"), PERSON)
    assert engine.advance(run.replay_run_id).admitted is not None
    run_pending(pipeline, "run-2")
    assert engine.advance(run.replay_run_id).state is ReplayState.FINISHED

    assert traces.statuses(pipeline) == {"succeeded": COUNT}
    path = [(entry.to_status.value, entry.reason) for entry in own_tx(pipeline.ledger).history(failing.wal_id)]
    assert [status for status, _ in path] == ["pending", "in_progress", "failed", "pending", "in_progress", "succeeded"]
    assert path[3] == ("pending", "incident")
    [repaired] = [record for record in traces.records(pipeline).values() if record.wal_id == failing.wal_id]
    assert (repaired.replay_run_id, repaired.attempts) == (run.replay_run_id, 2)
    for pattern in ("openlineage/**/*.ndjson", "prov/**/*.jsonld"):
        files = Path(pipeline.settings.lineage).glob(pattern)
        assert any(run.replay_run_id in file.read_text(encoding="utf-8") for file in files), pattern

    never_failed = open_pipeline(tmp_path / "other" / "home", objects)
    ingest(never_failed, items)
    assert left_by(pipeline) == left_by(never_failed)
    assert len(left_by(pipeline)["completed"]) == COUNT
    assert traces.outcomes(pipeline) == traces.outcomes(never_failed)
    never_failed.close()


@pytest.mark.clause("OPR-24", "RPL-07")
def test_items_of_a_range_of_days_are_made_again_as_the_release_makes_them(pipeline: Pipeline, objects: Path) -> None:
    items = volumes(COUNT)
    put(objects, items)
    ingest(pipeline, items)
    contract = pipeline.registry["nexrad-l2"]
    titled = contract.stac.data_asset.model_copy(update={"title": "A new title"})
    stac = contract.stac.model_copy(update={"data_asset": titled})
    newer = replace(pipeline, registry=ContractRegistry.of([contract.model_copy(update={"stac": stac})]))
    days = {"first": PARTITION, "last": PARTITION}
    engine = ReplayEngine(pipeline=newer)
    wide = wanted("succeeded", mode="repair-and-replace").model_dump(mode="json")
    wide["spec"]["filters"] |= {"event_time": {}, "days": days}
    run = engine.start(selection_of(wide, source="the test"), PERSON)
    assert engine.advance(run.replay_run_id).admitted is not None
    run_pending(newer, "run-2")
    assert engine.advance(run.replay_run_id).state is ReplayState.FINISHED
    found = [json.loads(path.read_bytes()) for path in Path(pipeline.settings.catalog).rglob("*.json")]
    titles = [one["assets"]["data"]["title"] for one in found if one["type"] == "Feature"]
    assert titles == ["A new title"] * COUNT
