"""Comparing bucket, ledger, catalog and lineage: each kind of difference and its repair."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import time, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from kfm_dagster.demo.samples.hrrr import make_hrrr
from kfm_dagster.demo.samples.ndfd import ndfd_samples
from kfm_dagster.demo.samples.nexrad_chunks import BUCKET, make_nexrad_chunks
from kfm_dagster.errors import RefusedError
from kfm_dagster.governance.log import Decision, GovernanceAction
from kfm_dagster.ingest.nodes import Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.lineage.batches import LineageBatches
from kfm_dagster.recovery import reconcile
from kfm_dagster.recovery.reconcile import ON_ITS_WAY, ComparedDay, compare_day, repair_day
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster_tests.factories import failed, repeat_units, with_section
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import (
    DATASET,
    DAY,
    START,
    StoredObject,
    good,
    notify,
    put,
    renumbered,
    run_chain,
    run_pending,
    volumes,
)
from kfm_dagster_tests.integration.chunk_feed import CHUNKS, ingest
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.clause("BEY-05")

UNKNOWN = "00000000-0000-8000-8000-000000000000"
WHY = Decision(actor="ada", reason="lost messages")
APPROVED = Decision(actor="ada", reason="lost files", change_ref="CHG-1")
Change = Callable[[Pipeline, Path], str]


@pytest.fixture
def ingested(pipeline: Pipeline, objects: Path) -> Pipeline:
    """A pipeline with three volumes, stored long ago, announced and ingested."""
    items = volumes(3)
    stored(objects, *items)
    notify(pipeline, *items)
    run_pending(pipeline, "run")
    return pipeline


def stored(objects: Path, *items: StoredObject, ago: timedelta = timedelta(days=1)) -> None:
    """Store objects with this age."""
    put(objects, items, written=START - ago)


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
    stored(objects, item)
    return item.uri


def rewritten(_: Pipeline, objects: Path) -> str:
    item = renumbered(volumes(1)[0])
    stored(objects, item, ago=timedelta(hours=1))
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


CHANGES: list[tuple[str, Change]] = [
    ("object_without_unit", never_announced),
    ("object_without_unit", rewritten),
    ("unit_without_object", gone),
    ("success_without_item", lost),
    ("item_without_success", stray),
]


def test_each_difference_is_reported_and_no_other(ingested: Pipeline, objects: Path) -> None:
    assert differing(compare_day(ingested, DATASET, DAY)) == {}
    expected: dict[str, list[str]] = {}
    for kind, change in CHANGES:
        expected.setdefault(kind, []).append(change(ingested, objects))
        compared = compare_day(ingested, DATASET, DAY)
        assert {name: sorted(names) for name, names in differing(compared).items()} == {
            name: sorted(names) for name, names in expected.items()
        }


def test_an_object_without_unit_is_reported_after_a_delay_and_not_recorded_while_its_dataset_is_off(
    ingested: Pipeline, objects: Path
) -> None:
    for late, missed in ((timedelta(seconds=1), 0), (timedelta(0), 1)):
        stored(objects, volumes(4)[3], ago=ON_ITS_WAY - late)
        compared = compare_day(ingested, DATASET, DAY)
        assert len(compared.missing_units) == missed
    ingested.ledger.switches.engage(DATASET, WHY)
    with pytest.raises(RefusedError, match="is switched off"):
        repair_day(ingested, compared, WHY, limit=10)
    assert len(compare_day(ingested, DATASET, DAY).missing_units) == 1
    ingested.ledger.switches.release(DATASET, WHY)
    earlier = DAY.replace(year=2024)
    repair_day(ingested, replace(compared, day=earlier), WHY, limit=9)
    [entry] = own_tx(ingested.ledger.log).entries(action=GovernanceAction.RECONCILED)
    assert entry.details == {"day": earlier.isoformat(), "objects": 1, "requeued": 0}
    # The window includes the repaired day.
    assert ingested.window.first_day() == earlier


def test_a_repair_respects_its_limit_and_reports_the_rest(ingested: Pipeline, objects: Path) -> None:
    items = volumes(6)[3:]
    stored(objects, *items)
    steps: list[int] = []
    compared = compare_day(ingested, DATASET, DAY)
    done = repair_day(ingested, compared, WHY, limit=2, progress=steps.append)
    assert (done["entered"], done["left"], steps) == (2, 1, [2])
    run_pending(ingested, "repair")
    rest = compare_day(ingested, DATASET, DAY)
    assert [listed.uri for listed in rest.missing_units] == [items[2].uri]
    # A second repair changes nothing that exists.
    assert repair_day(ingested, compared, WHY, limit=2)["entered"] == 0


def test_a_lost_item_is_restored_only_by_a_replay_with_a_change_reference(ingested: Pipeline, objects: Path) -> None:
    before = item_files(ingested)
    lost(ingested, objects)
    compared = compare_day(ingested, DATASET, DAY)
    assert repair_day(ingested, compared, WHY, limit=10)["left"] == 1
    repeat(ingested, compared)
    # The restored Item's content is equal, otherwise the replay would have stopped; only its run differs.
    assert item_files(ingested) == before
    assert differing(compare_day(ingested, DATASET, DAY)) == {}
    # Further lost Items are repaired like the first: another Item, and the same Item again.
    for path in (before[1], before[0]):
        path.unlink()
        repeat(ingested, compare_day(ingested, DATASET, DAY))
        assert item_files(ingested) == before


def repeat(pipeline: Pipeline, compared: ComparedDay) -> None:
    """Repair the one lost Item in a new run, since a run's steps are never repeated."""
    done = repair_day(pipeline, compared, APPROVED, limit=10)
    assert (done["repeated"], done["left"]) == (1, 0)
    pipeline.clock.forward(1)  # the rate of admission is limited
    ReplayEngine(pipeline=pipeline).advance(str(done["replay_run_id"]))
    run_pending(pipeline, f"run of {done['replay_run_id']}")


def test_lineage_with_a_missing_file_is_reported_and_not_repaired(ingested: Pipeline) -> None:
    [file] = Path(ingested.settings.lineage).glob("prov/**/*.jsonld")
    file.unlink()
    compared = compare_day(ingested, DATASET, DAY)
    assert differing(compared) == {"success_without_lineage": [item.uri for item in volumes(3)]}
    assert repair_day(ingested, compared, APPROVED, limit=10)["left"] == 3


def test_an_item_file_with_other_content_counts_as_lost_if_the_files_are_read(ingested: Pipeline) -> None:
    path = item_files(ingested)[0]
    item = json.loads(path.read_bytes())
    path.write_text(json.dumps({**item, "properties": {**item["properties"], "title": "another"}}))
    assert differing(compare_day(ingested, DATASET, DAY)) == {}
    compared = compare_day(ingested, DATASET, DAY, read=True)
    assert differing(compared) == {"success_without_item": [path.stem]}
    repeat(ingested, compared)
    assert differing(compare_day(ingested, DATASET, DAY, read=True)) == {}


def test_no_replay_is_started_for_a_removed_or_overwritten_object(ingested: Pipeline, objects: Path) -> None:
    for path in item_files(ingested):
        path.unlink()
    rewritten(ingested, objects)
    gone(ingested, objects)
    compared = compare_day(ingested, DATASET, DAY)
    done = repair_day(ingested, compared, APPROVED, limit=10)
    # Not repaired: the removed object, its Item, and the Item of the overwritten object's earlier version.
    assert (done["entered"], done["repeated"], done["left"]) == (1, 1, 3)
    # The version that the repair recorded is in the bucket, so a run will write its Item.
    assert "item_without_success" not in differing(compare_day(ingested, DATASET, DAY))


def in_every_status(pipeline: Pipeline, objects: Path) -> dict[str, StoredObject]:
    """Ingest volumes and change these units, which have Items, to each status; two more units stay pending."""
    names = ("succeeded", "pending", "in_progress", "failed", "quarantined", "never_worked", "never_there")
    items = dict(zip(names, volumes(7), strict=True))
    stored(objects, *list(items.values())[:5])
    notify(pipeline, *list(items.values())[:5])
    run_pending(pipeline, "run")
    ids = {uri: record.wal_id for uri, record in traces.records(pipeline).items()}
    repeat_units(pipeline.ledger, *(ids[items[name].uri] for name in names[1:5]))
    ends = [ids[items[name].uri] for name in names[2:5]]
    claimed = {
        unit.object_uri: unit
        for unit in own_tx(pipeline.ledger).claim(
            dataset=DATASET, partition=DAY.isoformat(), run_id="again", limit=9, wal_ids=ends
        )
    }
    codes = {"failed": "missing_object", "quarantined": "governance_hard_fail"}
    own_tx(pipeline.ledger).settle(
        [failed(claimed[items[name].uri], code) for name, code in codes.items()], run_id="again"
    )
    stored(objects, items["never_worked"])
    notify(pipeline, *list(items.values())[5:])
    return items


def test_the_expected_artifacts_of_a_unit_depend_on_its_status(pipeline: Pipeline, objects: Path) -> None:
    items = in_every_status(pipeline, objects)
    assert {uri: record.status.value for uri, record in traces.records(pipeline).items()} == {
        item.uri: "pending" if name.startswith("never") else name for name, item in items.items()
    }
    quarantined = Path(items["quarantined"].key).name
    assert differing(compare_day(pipeline, DATASET, DAY)) == {
        "unit_without_object": [items["never_there"].uri], "item_without_success": [quarantined],
    }  # fmt: skip
    for item in items.values():
        (objects / item.bucket / item.key).unlink(missing_ok=True)
    # Failed and quarantined units have already reported their missing objects.
    assert differing(compare_day(pipeline, DATASET, DAY)) == {
        "unit_without_object": sorted(items[name].uri for name in items.keys() - {"failed", "quarantined"}),
        "item_without_success": [quarantined],
    }  # fmt: skip


def test_files_of_items_that_are_still_to_be_ingested_are_not_stray(ingested: Pipeline, objects: Path) -> None:
    recorded, young, foreign = volumes(6)[3:]
    stored(objects, recorded)
    notify(ingested, recorded)
    stored(objects, young, ago=timedelta(0))
    folder = item_files(ingested)[0].parent
    for item in (recorded, young, foreign):
        (folder / f"{Path(item.key).name}.json").write_text("{}")
    assert differing(compare_day(ingested, DATASET, DAY)) == {
        "item_without_success": [f"{Path(foreign.key).name}.json"]
    }


def test_items_missing_in_the_index_are_restored_up_to_the_limit(ingested: Pipeline) -> None:
    own_tx(ingested.catalog).undo(DATASET, "run")
    compared = compare_day(ingested, DATASET, DAY)
    assert differing(compared) == {"success_without_item": [Path(item.key).name for item in volumes(3)]}
    done = repair_day(ingested, compared, APPROVED, limit=2)
    assert (done["repeated"], done["left"]) == (2, 1)


def test_a_lost_item_is_missing_only_for_the_newer_of_two_versions_of_an_object(
    ingested: Pipeline, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "ITEMS_AT_ONCE", 1)
    item = renumbered(volumes(1)[0])
    stored(objects, item, ago=timedelta(hours=1))
    notify(ingested, item, name="newer")
    run_pending(ingested, "newer")
    assert differing(compare_day(ingested, DATASET, DAY)) == {}
    newest = next(r.wal_id for r in own_tx(ingested.ledger).find(limit=9) if r.object_version == item.event().etag)
    [path] = [path for path in item_files(ingested) if path.stem == Path(item.key).name]
    path.unlink()
    compared = compare_day(ingested, DATASET, DAY)
    assert (list(compared.missing_items), list(compared.remakeable)) == ([newest], [newest])
    # If the bucket has another version of the object by now, a replay cannot restore the Item.
    stored(objects, volumes(1)[0])
    assert compare_day(ingested, DATASET, DAY).remakeable == []


def test_missing_and_withdrawn_lineage_is_reported_and_pending_lineage_is_not(
    ingested: Pipeline, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = volumes(4)[3]
    stored(objects, waiting)
    with monkeypatch.context() as patched:
        patched.setattr(LineageBatches, "publish", lambda _: 0)
        patched.setattr(LineageBatches, "publish_unless_failing", lambda _: None)
        notify(ingested, waiting)
        run_pending(ingested, "later")
        assert differing(compare_day(ingested, DATASET, DAY)) == {}
    own_tx(ingested.lineage).invalidate(run_id="run", contract=ingested.registry[DATASET], reason="test")
    assert differing(compare_day(ingested, DATASET, DAY)) == {
        "success_without_lineage": [item.uri for item in volumes(3)]
    }


def test_two_datasets_of_one_folder_and_two_days_are_compared_separately(pipeline: Pipeline, objects: Path) -> None:
    moment = START.combine(DAY, START.time(), START.tzinfo)
    begun, later = (
        good(BUCKET, *make_nexrad_chunks(site="KICT", start=moment + timedelta(minutes=minutes))[0])
        for minutes in (0, 6)
    )
    for number, item in enumerate((begun, later, *volumes(1))):
        stored(objects, item)
        ingest(pipeline, objects, item, run_id=f"run-{number}")
        stored(objects, item)
    compared = {dataset: compare_day(pipeline, dataset, DAY) for dataset in (DATASET, CHUNKS)}
    # The second volume closed the first, which added a unit of the same object.
    assert {name: (day.objects, day.units, day.items, differing(day) == {}) for name, day in compared.items()} == {
        DATASET: (1, 1, 1, True), CHUNKS: (2, 3, 2, True),
    }  # fmt: skip
    before = compare_day(pipeline, DATASET, DAY - timedelta(days=1))
    assert (before.units, before.items) == (0, 0)
    # Stray files of the folder are reported for the dataset that owns it.
    name = stray(pipeline, objects)
    # An Item of an unknown unit belongs to neither dataset.
    lost = Path(volumes(1)[0].key).name
    change = sa.text("UPDATE catalog_items SET wal_id = :id, revision = revision + 1 WHERE item_id = :item")
    with pipeline.database.engine.begin() as connection:
        connection.execute(change, {"id": UNKNOWN, "item": lost})
    assert differing(compare_day(pipeline, DATASET, DAY)) == {"item_without_success": sorted([lost, name])}
    assert differing(compare_day(pipeline, CHUNKS, DAY)) == {}
    assert differing(compare_day(pipeline, "hrrr", DAY)) == {}


@pytest.mark.clause("WAL-04")
def test_the_next_version_of_an_object_without_a_time_in_its_key_replaces_its_item(
    pipeline: Pipeline, objects: Path
) -> None:
    days = [DAY, DAY + timedelta(days=1)]
    for number, day in enumerate(days):
        item = good(*next(iter(ndfd_samples(day, 1))))
        written = START.combine(day, time(13), START.tzinfo)
        put(objects, [item], written=written)
        notify(pipeline, item, event_time=written)
        run_chain(pipeline, "ndfd", day.isoformat(), f"run-{number}", Source.LEDGER)
    [shown] = traces.catalog_items(pipeline).values()
    assert shown["properties"]["forecast:reference_datetime"] == f"{days[1]}T12:00:00Z"
    records = own_tx(pipeline.ledger).find(limit=9)
    assert len(records) == 2
    assert {(unit.status, unit.stac_item_id) for unit in records} == {("succeeded", "ndfd.conus.001-003.maxt")}
    compared = [compare_day(pipeline, "ndfd", day) for day in days]
    assert [(day.objects, day.units, day.items, differing(day)) for day in compared] == [(0, 1, 1, {}), (1, 1, 0, {})]


def test_a_unit_completed_by_a_sidecar_is_compared_by_its_object_s_version(pipeline: Pipeline, objects: Path) -> None:
    key, content, index = make_hrrr(run=START.combine(DAY, time(6), START.tzinfo), lead=7)
    items = [good("noaa-hrrr-bdp-pds", key, content), good("noaa-hrrr-bdp-pds", f"{key}.idx", index.encode())]
    for number, item in enumerate(items):
        stored(objects, item)
        notify(pipeline, item)
        run_chain(pipeline, "hrrr", DAY.isoformat(), f"run-{number}", Source.LEDGER)
    compared = compare_day(pipeline, "hrrr", DAY)
    assert (compared.objects, compared.units, differing(compared)) == (1, 2, {})
    [path] = [path for path in Path(pipeline.settings.catalog).rglob("*.json") if "wrfsfcf07" in path.name]
    path.unlink()
    compared = compare_day(pipeline, "hrrr", DAY)
    completion = next(
        unit.wal_id for unit in own_tx(pipeline.ledger).find(limit=9) if ".idx=" in str(unit.object_version)
    )
    assert (list(compared.missing_items), compared.remakeable) == ([completion], [completion])


def test_etags_of_other_providers_than_aws_are_not_compared_with_etags_of_messages(
    ingested: Pipeline, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewritten(ingested, objects)
    elsewhere = with_section(ingested.registry[DATASET], "storage", provider="gcp")
    monkeypatch.setitem(ingested.registry.contracts, DATASET, elsewhere)
    assert differing(compare_day(ingested, DATASET, DAY)) == {}
