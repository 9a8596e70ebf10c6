"""Bucket, ledger, catalog and lineage held against each other: each way in which two differ, and what repairs it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from kfm_dagster.governance.log import Decision
from kfm_dagster.governance.switches import KillSwitchError
from kfm_dagster.ingest.nodes import Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.recovery.reconcile.comparison import ON_ITS_WAY, ComparedDay, compare_day
from kfm_dagster.recovery.reconcile.repair import repair_day
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster_tests.integration.chain import DAY, START, announce, put, run_chain, take, volumes
from kfm_dagster_tests.integration.test_run_rollback import renumbered

pytestmark = pytest.mark.clause("BEY-05")

DATASET = "nexrad-l2"
WHY = Decision(actor="ada", reason="lost messages")
APPROVED = Decision(actor="ada", reason="lost files", change_ref="CHG-1")
Change = Callable[[Pipeline, Path], str]


@pytest.fixture
def ingested(pipeline: Pipeline, objects: Path) -> Pipeline:
    """Three volumes, stored long ago, announced and ingested."""
    items = volumes(3)
    put(objects, items)
    for item in items:
        written(objects / item.bucket / item.key, ago=timedelta(days=1))
    take(pipeline, announce([item.event() for item in items], registry=pipeline.registry))
    run_chain(pipeline, DATASET, DAY.isoformat(), "run", Source.LEDGER)
    return pipeline


def written(path: Path, *, ago: timedelta) -> None:
    moment = (START - ago).timestamp()
    os.utime(path, (moment, moment))


def item_files(pipeline: Pipeline) -> list[Path]:
    return sorted(
        path
        for path in Path(pipeline.settings.catalog).rglob("*/2025-04-02/*.json")
        if not path.name.startswith(("catalog", "page-"))
    )


def differing(compared: ComparedDay) -> dict[str, list[str]]:
    return {kind.value: list(names) for kind, names in compared.named().items() if names}


def never_announced(_: Pipeline, objects: Path) -> str:
    item = volumes(4)[3]
    put(objects, [item])
    written(objects / item.bucket / item.key, ago=timedelta(days=1))
    return item.uri


def rewritten(_: Pipeline, objects: Path) -> str:
    item = renumbered(volumes(1)[0])
    put(objects, [item])
    written(objects / item.bucket / item.key, ago=timedelta(hours=1))
    return item.uri


def gone(_: Pipeline, objects: Path) -> str:
    item = volumes(3)[1]
    (objects / item.bucket / item.key).unlink()
    return item.uri


def lost(pipeline: Pipeline, _: Path) -> str:
    path = item_files(pipeline)[0]
    path.unlink()
    return path.stem


def stray(pipeline: Pipeline, _: Path) -> str:
    path = item_files(pipeline)[0].with_name("nobody.json")
    path.write_text("{}")
    return path.name


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("object_without_unit", never_announced),
        ("object_without_unit", rewritten),
        ("unit_without_object", gone),
        ("success_without_item", lost),
        ("item_without_success", stray),
    ],
)
def test_each_difference_is_named_and_no_other(ingested: Pipeline, objects: Path, kind: str, change: Change) -> None:
    assert compare_day(ingested, DATASET, DAY).agrees
    name = change(ingested, objects)
    compared = compare_day(ingested, DATASET, DAY)
    assert differing(compared) == {kind: [name]}
    assert not compared.agrees


@pytest.mark.parametrize(("late", "missed"), [(timedelta(0), 1), (timedelta(seconds=1), 0)])
def test_an_object_so_young_may_still_be_announced(
    ingested: Pipeline, objects: Path, late: timedelta, missed: int
) -> None:
    item = volumes(4)[3]
    put(objects, [item])
    written(objects / item.bucket / item.key, ago=ON_ITS_WAY - late)
    assert len(compare_day(ingested, DATASET, DAY).missing_units) == missed


def test_a_repair_enters_no_more_than_its_limit_and_says_what_is_left(ingested: Pipeline, objects: Path) -> None:
    items = volumes(6)[3:]
    put(objects, items)
    for item in items:
        written(objects / item.bucket / item.key, ago=timedelta(days=1))
    steps: list[int] = []
    compared = compare_day(ingested, DATASET, DAY)
    done = repair_day(ingested, compared, WHY, limit=2, progress=steps.append)
    assert (done.entered, done.left, steps) == (2, 1, [2])
    run_chain(ingested, DATASET, DAY.isoformat(), "repair", Source.LEDGER)
    rest = compare_day(ingested, DATASET, DAY)
    assert [listed.uri for listed in rest.missing_units] == [items[2].uri]
    # The same again changes nothing that is there.
    assert repair_day(ingested, compared, WHY, limit=2).entered == 0


def test_a_lost_item_is_made_again_by_a_replay_under_a_change_and_not_without(
    ingested: Pipeline, objects: Path
) -> None:
    before = item_files(ingested)
    lost(ingested, objects)
    compared = compare_day(ingested, DATASET, DAY)
    assert repair_day(ingested, compared, WHY, limit=10).left == 1
    repeat(ingested, compared)
    # It says what it said, or the replay would have stopped; who made it is another run.
    assert item_files(ingested) == before
    assert compare_day(ingested, DATASET, DAY).agrees


def repeat(pipeline: Pipeline, compared: ComparedDay) -> None:
    """Have the one Item that is lost made again."""
    done = repair_day(pipeline, compared, APPROVED, limit=10)
    assert (done.repeated, done.left) == (1, 0)
    ReplayEngine(pipeline=pipeline).advance(str(done.replay_run_id))
    run_chain(pipeline, DATASET, DAY.isoformat(), "again", Source.LEDGER)


def test_lineage_whose_file_is_gone_is_named_and_left_to_a_person(ingested: Pipeline) -> None:
    [file] = Path(ingested.settings.lineage).glob("prov/**/*.jsonld")
    file.unlink()
    compared = compare_day(ingested, DATASET, DAY)
    assert differing(compared) == {"success_without_lineage": [item.uri for item in volumes(3)]}
    assert repair_day(ingested, compared, APPROVED, limit=10).left == 3


def test_an_item_that_says_something_else_is_lost_to_who_reads_it(ingested: Pipeline) -> None:
    path = item_files(ingested)[0]
    item = json.loads(path.read_bytes())
    path.write_text(json.dumps({**item, "properties": {**item["properties"], "title": "another"}}))
    assert compare_day(ingested, DATASET, DAY).agrees
    compared = compare_day(ingested, DATASET, DAY, read=True)
    assert differing(compared) == {"success_without_item": [path.stem]}
    repeat(ingested, compared)
    assert compare_day(ingested, DATASET, DAY, read=True).agrees


def test_no_replay_is_begun_whose_object_is_gone_or_was_written_again(ingested: Pipeline, objects: Path) -> None:
    for path in item_files(ingested):
        path.unlink()
    rewritten(ingested, objects)
    gone(ingested, objects)
    compared = compare_day(ingested, DATASET, DAY)
    done = repair_day(ingested, compared, APPROVED, limit=10)
    # Left are the object that is gone, and the Items of that one and of the earlier version of the other.
    assert (done.entered, done.repeated, done.left) == (1, 1, 3)
    # Which is in the bucket: what was entered makes its Item.
    assert "item_without_success" not in differing(compare_day(ingested, DATASET, DAY))


def test_nothing_is_repaired_of_a_dataset_that_is_switched_off(ingested: Pipeline, objects: Path) -> None:
    never_announced(ingested, objects)
    compared = compare_day(ingested, DATASET, DAY)
    ingested.ledger.switches.engage(DATASET, WHY)
    with pytest.raises(KillSwitchError):
        repair_day(ingested, compared, WHY, limit=10)
    assert len(compare_day(ingested, DATASET, DAY).missing_units) == 1
