"""NEXRAD volumes from chunks in any order; a later volume closes a volume without its last chunk."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kfm_dagster.contracts.envelope import CLOSED, Lane
from kfm_dagster.demo.samples.nexrad_chunks import BUCKET, make_nexrad_chunks
from kfm_dagster.demo.samples.nexrad_level2 import BUCKET as ARCHIVE_BUCKET
from kfm_dagster.demo.samples.nexrad_level2 import make_nexrad_level2
from kfm_dagster.ingest import intake
from kfm_dagster.ingest.nodes import MetadataExtract, Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.recording import close, ensure_units
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.operators.message_parse import parse_message
from kfm_dagster.readers.nexrad_chunk import LATER_VOLUME
from kfm_dagster.storage.database import Transaction
from kfm_dagster_tests.catalog import trees
from kfm_dagster_tests.databases import BOTH_DATABASES
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import (
    DAY,
    PARTITION,
    Clock,
    CrashError,
    Failpoint,
    StoredObject,
    assert_conserved,
    good,
    open_pipeline,
    put,
    run_chain,
    take,
    volumes,
    work_until_done,
)
from kfm_dagster_tests.integration.chunk_feed import ARCHIVE, CHUNKS, arrive, ingest, notice, work
from kfm_dagster_tests.transactions import own_tx

START = datetime.combine(DAY, time(6, 0, 3, 250_000), UTC)
RADAR = "KICT"
ITEM_ID = f"{RADAR}{START:%Y%m%d_%H%M%S}_V06"
S, I2, I3, E = (good(BUCKET, key, content) for key, content in make_nexrad_chunks(site=RADAR, start=START))
WHOLE = good(ARCHIVE_BUCKET, *make_nexrad_level2(site=RADAR, start=START))


def item_of(pipeline: Pipeline, item_id: str = ITEM_ID) -> dict[str, Any]:
    """Return the only Item, without the run that wrote it."""
    (item,) = traces.catalog_items(pipeline).values()
    assert item["id"] == item_id
    item["properties"].pop("kfm:run_state")
    return item


def everything(pipeline: Pipeline) -> dict[str, Any]:
    """Return the Item and the units' outcomes for comparison; check that events are unique."""
    traces.published_once(pipeline)
    trees.assert_consistent(Path(pipeline.settings.catalog))
    records = traces.records(pipeline)
    assert all(pipeline.lineage.links_of(record.wal_id) for record in records.values())
    return {"item": item_of(pipeline), "ledger": traces.outcomes(pipeline)}


@pytest.mark.clause("OPR-01", "OPR-06")
def test_an_item_grows_from_the_first_chunk_to_the_archive_s_object(pipeline: Pipeline, objects: Path) -> None:
    ends = []
    for number, chunk in enumerate((S, I2, I3, E), start=1):
        ingest(pipeline, objects, chunk, run_id=f"run-{number}")
        item = item_of(pipeline)
        properties = item["properties"]
        assert (properties["nexrad:chunks"], properties["nexrad:complete"]) == (number, chunk is E)
        assert (properties["nexrad:site"], properties["nexrad:vcp"], properties["kfm:dataset"]) == (RADAR, 212, CHUNKS)
        assert properties["datetime"] == f"{START:%Y-%m-%dT%H:%M:%S}.000000Z"
        assert item["collection"] == ARCHIVE
        assert item["assets"]["data"]["href"] == chunk.uri
        assert item["assets"]["data"]["file:size"] == len(chunk.announced)
        ends.append(properties.get("end_datetime", properties["datetime"]))
        record = traces.records(pipeline)[chunk.uri]
        assert (record.status, record.stac_status) == (Status.SUCCEEDED, "created" if chunk is S else "updated")
    assert ends == sorted(set(ends))

    ingest(pipeline, objects, WHOLE, run_id="archive")
    item = item_of(pipeline)
    assert item["assets"]["data"]["href"] == WHOLE.uri
    assert item["properties"]["kfm:dataset"] == ARCHIVE
    assert item["properties"]["end_datetime"] == ends[-1]
    assert not {"nexrad:chunks", "nexrad:complete", "nexrad:cuts"} & item["properties"].keys()
    assert traces.statuses(pipeline) == {Status.SUCCEEDED: 5}
    # In lineage, each revision names the revision before it.
    revised = [edge for edge in traces.prov_edges(Path(pipeline.settings.lineage)) if "revision" in edge[1].lower()]
    assert len(revised) == 4
    everything(pipeline)


@pytest.mark.clause("OPR-08")
def test_both_datasets_write_the_collection_by_the_archive_s_contract(pipeline: Pipeline, objects: Path) -> None:
    root = Path(pipeline.settings.catalog)
    ingest(pipeline, objects, S, run_id="chunk")
    first = traces.catalog_tree(root)[f"{ARCHIVE}/collection.json"]
    ingest(pipeline, objects, WHOLE, run_id="archive")
    before, documents = (root / "catalog.json").stat().st_mtime_ns, traces.catalog_tree(root)
    later = [good(BUCKET, key, content) for key, content in make_nexrad_chunks(site="KTWX", start=START)]
    ingest(pipeline, objects, later[0], run_id="another chunk")
    own_tx(pipeline.catalog).undo(CHUNKS, "another chunk")
    assert traces.catalog_tree(root) == documents
    contract = pipeline.registry[ARCHIVE]
    for collection in (first, documents[f"{ARCHIVE}/collection.json"]):
        assert (collection["title"], collection["kfm:dataset"]) == (contract.metadata.title, ARCHIVE)
        assert collection["item_assets"]["data"]["title"] == contract.stac.data_asset.title
    # The two datasets do not rewrite each other's Collection, which would rewrite the root each time.
    assert (root / "catalog.json").stat().st_mtime_ns == before


@pytest.mark.clause("OPR-06", "BEY-03")
def test_a_real_volume_from_unordered_chunks_has_the_values_of_an_independent_reader(
    pipeline: Pipeline, objects: Path, shared_data: Path, reference: Mapping[str, Any]
) -> None:
    folder = "objects/unidata-nexrad-level2-chunks/KLOT/901"
    chunks = [good(BUCKET, f"KLOT/901/{path.name}", path.read_bytes()) for path in (shared_data / folder).iterdir()]
    random.Random(901).shuffle(chunks)
    pipeline.clock = Clock(now=datetime(2026, 3, 29, tzinfo=UTC))
    for number in range(0, len(chunks), 7):
        arrive(pipeline, objects, *chunks[number : number + 7])
        run_chain(pipeline, CHUNKS, "2026-03-28", f"run-{number}", Source.LEDGER)
    work_until_done(pipeline)
    (item,) = traces.catalog_items(pipeline).values()
    answers, properties = reference[f"{folder}/"]["reference"], item["properties"]
    whole = answers["xradar"]
    assert item["id"] == "KLOT20260328_201457_V06"
    assert (properties["nexrad:chunks"], properties["nexrad:complete"]) == (answers["n_chunks"], True)
    assert (properties["nexrad:cuts"], f"VCP-{properties['nexrad:vcp']}") == (whole["nsweeps"], whole["scan_name"])
    for name, expected in (("start_datetime", "time_coverage_start"), ("end_datetime", "time_coverage_end")):
        actual, independent = (datetime.fromisoformat(text) for text in (properties[name], whole[expected]))
        assert abs(actual - independent) < timedelta(seconds=1)
    location = [properties[f"nexrad:{name}"] for name in ("latitude", "longitude", "height-m")]
    assert location == pytest.approx([whole[name] for name in ("latitude", "longitude", "altitude")], abs=1e-6)
    assert traces.statuses(pipeline) == {Status.SUCCEEDED: answers["n_chunks"]}
    traces.assert_once(traces.events(Path(pipeline.settings.lineage)))


def plan(seed: int) -> list[list[StoredObject]]:
    """Return chunks in random batches, some twice; every second plan has the archive's object."""
    chance = random.Random(seed)
    items = [S, I2, I3, E, *([WHOLE] if seed % 2 else [])]
    arrivals = items + chance.sample(items, chance.randint(0, 3))
    chance.shuffle(arrivals)
    batches: list[list[StoredObject]] = [[]]
    for item in arrivals:
        if batches[-1] and chance.random() < 0.6:
            batches.append([])
        batches[-1].append(item)
    return batches


@pytest.fixture(scope="module")
def item_alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[StoredObject], dict[str, Any]]:
    """Return a function that gives the Item of an object that is ingested alone."""

    def item(of: StoredObject) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("alone")
        (folder / "objects").mkdir()
        pipeline = open_pipeline(folder / "home", folder / "objects")
        ingest(pipeline, folder / "objects", of, run_id="run")
        written = item_of(pipeline)
        pipeline.close()
        return written

    return cache(item)


@pytest.mark.clause("BEY-01")
@pytest.mark.parametrize("seed", range(8))
def test_in_every_order_the_item_ends_as_that_of_the_last_chunk_or_of_the_archive_s_object(
    seed: int, pipeline: Pipeline, objects: Path, item_alone: Callable[[StoredObject], dict[str, Any]]
) -> None:
    for number, batch in enumerate(plan(seed)):
        arrive(pipeline, objects, *batch, name=f"{number}-")
        work(pipeline, f"run-{number}")
    work_until_done(pipeline)
    assert everything(pipeline)["item"] == item_alone(WHOLE if seed % 2 else E)
    assert traces.statuses(pipeline) == {Status.SUCCEEDED: 5 if seed % 2 else 4}


SITE = "KTWX"
MIDNIGHT = datetime.combine(DAY, time(), UTC) + timedelta(days=1)
STARTS = tuple(MIDNIGHT + timedelta(minutes=minutes) for minutes in (-12, -6, 1))
"""Start times of three volumes: two before midnight and one after it."""
FIRST, SECOND, THIRD = (
    [good(BUCKET, key, content) for key, content in make_nexrad_chunks(site=SITE, start=start, volume_number=7)]
    for start in STARTS
)
"""The chunks S, I, I and E of each volume; all volumes have the same number."""
FIRST_ARCHIVED = good(ARCHIVE_BUCKET, *make_nexrad_level2(site=SITE, start=STARTS[0], volume_number=7))


def ledger_of(pipeline: Pipeline) -> dict[tuple[str, str | None], NoddWalRecord]:
    """Return every record of chunks by object and version."""
    chunk_records = own_tx(pipeline.ledger).find(dataset=CHUNKS, limit=10_000)
    return {(record.object_uri, record.object_version): record for record in chunk_records}


def closings(pipeline: Pipeline) -> dict[str, NoddWalRecord]:
    return {uri: record for (uri, version), record in ledger_of(pipeline).items() if version == CLOSED}


def items_of(pipeline: Pipeline, site: str = SITE) -> list[dict[str, Any]]:
    """Return a radar's Items in the order of its volumes."""
    catalogued = traces.catalog_items(pipeline).values()
    return sorted(
        (item for item in catalogued if item["properties"]["nexrad:site"] == site), key=lambda item: str(item["id"])
    )


def end_of(item: Mapping[str, Any]) -> tuple[int, bool, str | None]:
    """Return an Item's number of chunks, completeness, and reason of closing."""
    properties = item["properties"]
    assert properties.get("nexrad:closed", False) is ("nexrad:closed-by" in properties)
    return properties["nexrad:chunks"], properties["nexrad:complete"], properties.get("nexrad:closed-by")


def assert_all_published_once(pipeline: Pipeline) -> None:
    traces.published_once(pipeline)
    trees.assert_consistent(Path(pipeline.settings.catalog))
    assert_conserved(pipeline)


# --- in order


@pytest.mark.clause("BEY-09")
def test_the_next_volume_closes_a_volume_without_end_whose_item_then_has_the_reason(
    pipeline: Pipeline, objects: Path
) -> None:
    ingest(pipeline, objects, *FIRST[:2], run_id="first")
    [before] = items_of(pipeline)
    assert end_of(before) == (2, False, None)
    history = own_tx(pipeline.ledger).history(before["properties"]["kfm:wal_id"])

    report = arrive(pipeline, objects, SECOND[0])
    assert (report.created, report.closings) == (1, 1)
    # The closing has the earlier volume's day and the message that closed the volume.
    [closing] = closings(pipeline).values()
    assert (closing.object_uri, closing.partition_key, closing.lane) == (FIRST[1].uri, PARTITION, Lane.BULK)
    assert closing.sqs_message_id == notice(pipeline, SECOND[0]).message_id
    work(pipeline, "second")

    first, second = items_of(pipeline)
    assert end_of(first) == (2, False, LATER_VOLUME)
    assert end_of(second) == (1, False, None)
    assert first["properties"]["nexrad:closed"] is True
    changed = {"kfm:wal_id", "kfm:run_state", "nexrad:closed", "nexrad:closed-by"}
    revised = [
        {name: value for name, value in item["properties"].items() if name not in changed} for item in (before, first)
    ]
    assert revised[0] == revised[1]
    assert (first["assets"], first["properties"]["kfm:wal_id"]) == (before["assets"], closing.wal_id)
    # The chunk's own unit is unchanged.
    assert own_tx(pipeline.ledger).history(before["properties"]["kfm:wal_id"]) == history
    assert {record.status for record in ledger_of(pipeline).values()} == {Status.SUCCEEDED}
    assert_all_published_once(pipeline)


# --- in any order


SERIAL = itertools.count()


@st.composite
def arrivals(draw: st.DrawFn) -> list[list[tuple[int, int]]]:
    """Draw batches of chunks (volume, position) of three volumes: any order, repeats and gaps."""
    positions = st.sets(st.sampled_from((0, 1, 2, 0, 1, 2, 3)), max_size=4)
    some = [(number, position) for number in range(3) for position in sorted(draw(positions))] or [(0, 0)]
    sent = draw(st.permutations(some + draw(st.lists(st.sampled_from(some), max_size=4))))
    cuts = sorted(draw(st.sets(st.integers(1, len(sent)), max_size=6)))
    return [part for begin, end in itertools.pairwise([0, *cuts, len(sent)]) if (part := sent[begin:end])]


def over(arrived: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Return the newest chunk of each volume that has a later volume and lacks its last chunk."""
    newest = {
        number: max(position for volume_number, position in arrived if volume_number == number) for number, _ in arrived
    }
    return {(number, position) for number, position in newest.items() if number < max(newest) and position != 3}


@pytest.mark.clause("BEY-09", "BEY-03")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=arrivals())
@example(batches=[[(0, 0)], [(1, 0)], [(2, 0)]])
@example(batches=[[(2, 0)], [(1, 0)], [(0, 0)]])
@example(batches=[[(0, 0)], [(2, 0)], [(1, 0)]])
def test_in_any_order_a_volume_with_a_later_volume_is_closed_at_its_newest_known_chunk(
    pipeline: Pipeline, batches: list[list[tuple[int, int]]]
) -> None:
    # The examples share a database, so each has its own radar. No chunk is read here.
    site = f"X{next(SERIAL) % 1000:03d}"
    chunks = {
        (volume_number, position): StoredObject(
            bucket=BUCKET, key=chunk.key.replace(SITE, site), stored=None, announced=b""
        )
        for volume_number, chunks_made in enumerate((FIRST, SECOND, THIRD))
        for position, chunk in enumerate(chunks_made)
    }
    arrived: set[tuple[int, int]] = set()
    expected: set[tuple[int, int]] = set()
    for count, batch in enumerate(batches):
        messages = [notice(pipeline, chunks[chunk], name=f"{count}-{at}-") for at, chunk in enumerate(batch)]
        report = take(pipeline, *messages)
        arrived |= set(batch)
        assert report.closings == len(over(arrived) - expected), (batches, count)
        expected |= over(arrived)
        records = {key: record for key, record in ledger_of(pipeline).items() if f"/{site}/" in key[0]}
        assert set(records) == {(chunks[chunk].uri, None) for chunk in arrived} | {
            (chunks[chunk].uri, CLOSED) for chunk in expected
        }
        for chunk in expected:
            closing, own = records[chunks[chunk].uri, CLOSED], records[chunks[chunk].uri, None]
            assert (closing.status, closing.lane, own.status) == (Status.PENDING, Lane.BULK, Status.PENDING)
            assert (closing.partition_key, closing.event_time) == (own.partition_key, own.event_time)


@pytest.mark.clause("BEY-09", "BEY-01")
def test_chunks_after_the_closing_keep_a_volume_closed_until_its_last_chunk(pipeline: Pipeline, objects: Path) -> None:
    ingest(pipeline, objects, FIRST[0], run_id="first")
    ingest(pipeline, objects, SECOND[0], run_id="second")
    assert [end_of(item) for item in items_of(pipeline)] == [(1, False, LATER_VOLUME), (1, False, None)]
    assert arrive(pipeline, objects, FIRST[2]).closings == 1
    work(pipeline, "late")
    assert end_of(items_of(pipeline)[0]) == (3, False, LATER_VOLUME)
    assert arrive(pipeline, objects, FIRST[1]).closings == 0
    assert arrive(pipeline, objects, FIRST[3]).closings == 0
    work(pipeline, "its end")
    assert end_of(items_of(pipeline)[0]) == (4, True, None)
    assert {record.status for record in ledger_of(pipeline).values()} == {Status.SUCCEEDED}


@pytest.mark.clause("BEY-09", "BEY-01")
def test_reading_a_chunk_again_leaves_its_volume_closed(pipeline: Pipeline, objects: Path) -> None:
    put(objects, [FIRST[0], SECOND[0]])
    take(pipeline, notice(pipeline, FIRST[0]))
    with pytest.raises(CrashError):
        run_chain(
            pipeline,
            CHUNKS,
            PARTITION,
            "dying",
            Source.LEDGER,
            dies_at=Failpoint(operator=MetadataExtract.operator, point="committed"),
        )
    take(pipeline, notice(pipeline, SECOND[0]))
    work(pipeline, "closing")
    closed = items_of(pipeline)[0]
    assert end_of(closed) == (1, False, LATER_VOLUME)
    own_tx(pipeline.ledger).release_lost(run_ids=["dying"])
    work_until_done(pipeline)
    assert items_of(pipeline)[0] == closed
    assert {record.status for record in ledger_of(pipeline).values()} == {Status.SUCCEEDED}
    assert_all_published_once(pipeline)


# --- the archive's object


@pytest.mark.clause("BEY-09", "BEY-01")
@pytest.mark.parametrize("archive_first", [True, False], ids=["before the closing", "after the closing"])
def test_the_item_shows_the_archive_s_object_whether_it_comes_before_or_after_the_closing(
    archive_first: bool, pipeline: Pipeline, objects: Path
) -> None:
    ingest(pipeline, objects, *FIRST[:2], run_id="first")
    steps: list[Sequence[StoredObject]] = [[FIRST_ARCHIVED], [SECOND[0]]]
    for number, step in enumerate(steps if archive_first else reversed(steps)):
        ingest(pipeline, objects, *step, run_id=f"run-{number}")
    item = items_of(pipeline)[0]
    assert (item["properties"]["kfm:dataset"], item["assets"]["data"]["href"]) == (ARCHIVE, FIRST_ARCHIVED.uri)
    assert not {"nexrad:closed", "nexrad:closed-by", "nexrad:complete"} & item["properties"].keys()
    [closing] = closings(pipeline).values()
    assert (closing.status, closing.stac_status) == (Status.SUCCEEDED, "no-op" if archive_first else "updated")
    assert_all_published_once(pipeline)


# --- crashes, races and unreadable chunks


@pytest.mark.clause("BEY-09")
def test_a_killed_intake_closes_no_volume_and_the_redelivery_closes_it(
    pipeline: Pipeline, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(pipeline, objects, *FIRST[:2], run_id="first")
    before = ledger_of(pipeline)

    with monkeypatch.context() as patched:
        patched.setattr(intake, "record_messages", Mock(side_effect=CrashError("before its commit")))
        with pytest.raises(CrashError):
            arrive(pipeline, objects, SECOND[0])
    assert ledger_of(pipeline) == before
    assert arrive(pipeline, objects, SECOND[0]).closings == 1


@pytest.mark.clause("BEY-09")
@pytest.mark.parametrize("earlier_first", [True, False])
@BOTH_DATABASES
def test_of_two_concurrently_recorded_volumes_the_later_volume_closes_the_earlier_one(
    earlier_first: bool, make_pipeline: Callable[..., Pipeline], database_url: str
) -> None:
    first, second = (make_pipeline(url=database_url, home=home) for home in ("one", "other"))
    chunks = [FIRST[1], SECOND[1]] if earlier_first else [SECOND[1], FIRST[1]]
    closings_made: list[int] = []

    def admit(pipeline: Pipeline, chunk: StoredObject, *, meanwhile: Callable[[], None] = lambda: None) -> None:
        parsed = [parse_message(notice(pipeline, chunk), registry=pipeline.registry, queue="q")]
        with pipeline.database.transaction() as tx:
            ensure_units(pipeline.ledger, parsed, tx=tx)
            closings_made.append(close(pipeline.ledger, parsed[0].envelopes, tx))
            meanwhile()

    waiting = threading.Thread(target=admit, args=(second, chunks[1]))

    def wait_for_it() -> None:
        waiting.start()
        waiting.join(timeout=0.5)  # long enough to finish if it is not blocked

    admit(first, chunks[0], meanwhile=wait_for_it)
    waiting.join(timeout=60)
    assert not waiting.is_alive()
    assert closings_made == [0, 1]
    assert set(closings(first)) == {FIRST[1].uri}


@pytest.mark.clause("BEY-09")
def test_a_volume_with_unreadable_newest_chunk_is_closed_at_the_chunk_before(pipeline: Pipeline, objects: Path) -> None:
    empty = [replace(chunk, stored=b"") for chunk in (FIRST[1], SECOND[1])]
    ingest(pipeline, objects, FIRST[0], empty[0], run_id="first")
    assert ledger_of(pipeline)[empty[0].uri, None].status is Status.QUARANTINED
    assert arrive(pipeline, objects, SECOND[0]).closings == 1
    work(pipeline, "second")
    assert end_of(items_of(pipeline)[0]) == (1, False, LATER_VOLUME)
    # Only a run detects that this chunk is unreadable; the next intake closes at the chunk before it.
    assert arrive(pipeline, objects, empty[1], THIRD[0]).closings == 1
    work(pipeline, "third")
    assert end_of(items_of(pipeline)[1]) == (1, False, None)
    assert arrive(pipeline, objects, THIRD[1]).closings == 1
    work(pipeline, "fourth")
    assert end_of(items_of(pipeline)[1]) == (1, False, LATER_VOLUME)
    assert set(closings(pipeline)) == {FIRST[0].uri, SECOND[0].uri, SECOND[1].uri}


# --- backfills, and datasets without chunks


@pytest.mark.clause("BEY-09")
def test_a_backfill_closes_volumes_without_an_end(pipeline: Pipeline, objects: Path) -> None:
    put(objects, [*FIRST[:2], *SECOND])
    run_chain(pipeline, CHUNKS, PARTITION, "listed", Source.LISTING)
    work_until_done(pipeline)
    assert [end_of(item) for item in items_of(pipeline)] == [(2, False, LATER_VOLUME), (4, True, None)]
    assert set(closings(pipeline)) == {FIRST[1].uri}
    assert_all_published_once(pipeline)


def test_datasets_without_chunks_cause_no_query_of_volumes(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    executed: list[str] = []
    run = Transaction.run
    monkeypatch.setattr(
        Transaction,
        "run",
        lambda self, name, *arguments, **more: executed.append(name) or run(self, name, *arguments, **more),
    )
    take(pipeline, *(notice(pipeline, item) for item in volumes(3)))
    assert "ledger.ensure" in executed
    assert "ledger.endless_volumes" not in executed
    take(pipeline, *(notice(pipeline, item) for item in (*FIRST, *THIRD)))
    # One query per batch of any size.
    assert executed.count("ledger.endless_volumes") == 1
