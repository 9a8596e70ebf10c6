"""A volume's Item as its chunks come, in any order, over crashes and rollbacks, until the archive has the volume."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, time, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.demo.samples.nexrad_chunks import BUCKET, make_nexrad_chunks
from kfm_dagster.demo.samples.nexrad_level2 import BUCKET as ARCHIVE_BUCKET
from kfm_dagster.demo.samples.nexrad_level2 import make_nexrad_level2
from kfm_dagster.ingest.nodes import Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster_tests.catalog import trees
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import (
    DAY,
    Clock,
    StoredObject,
    good,
    open_pipeline,
    run_chain,
    work_until_done,
)
from kfm_dagster_tests.integration.chunk_feed import ARCHIVE, CHUNKS, arrive, ingest, work
from kfm_dagster_tests.transactions import own_tx

START = datetime.combine(DAY, time(6, 0, 3, 250_000), UTC)
SITE = "KICT"
ITEM_ID = f"{SITE}{START:%Y%m%d_%H%M%S}_V06"
S, I2, I3, E = (good(BUCKET, key, content) for key, content in make_nexrad_chunks(site=SITE, start=START))
WHOLE = good(ARCHIVE_BUCKET, *make_nexrad_level2(site=SITE, start=START))


def item_of(pipeline: Pipeline, item_id: str = ITEM_ID) -> dict[str, Any]:
    """The one Item, without the run that wrote it."""
    (item,) = traces.items(Path(pipeline.settings.catalog)).values()
    assert item["id"] == item_id
    item["properties"].pop("kfm:run_state")
    return item


def everything(pipeline: Pipeline) -> dict[str, Any]:
    """What two ways to one outcome have in common: the Item, what became of each unit, and that all is told once."""
    lineage = Path(pipeline.settings.lineage)
    for told in (traces.events(lineage), traces.prov_edges(lineage)):
        traces.assert_once(told)
    trees.assert_consistent(Path(pipeline.settings.catalog))
    records = traces.records(pipeline)
    assert all(pipeline.lineage.links_of(record.wal_id) for record in records.values())
    return {"item": item_of(pipeline), "ledger": traces.outcomes(pipeline)}


@pytest.mark.clause("OPR-01", "OPR-06")
def test_an_item_begins_with_the_first_chunk_grows_with_each_and_is_the_archive_s_at_last(
    pipeline: Pipeline, objects: Path
) -> None:
    ends = []
    for number, chunk in enumerate((S, I2, I3, E), start=1):
        ingest(pipeline, objects, chunk, run_id=f"run-{number}")
        item = item_of(pipeline)
        properties = item["properties"]
        assert (properties["nexrad:chunks"], properties["nexrad:complete"]) == (number, chunk is E)
        assert (properties["nexrad:site"], properties["nexrad:vcp"], properties["kfm:dataset"]) == (SITE, 212, CHUNKS)
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
    # Each revision says in the lineage which one it revises.
    revised = [edge for edge in traces.prov_edges(Path(pipeline.settings.lineage)) if "revision" in edge[1].lower()]
    assert len(revised) == 4
    everything(pipeline)


@pytest.mark.clause("OPR-08")
def test_the_collection_says_what_the_archive_s_contract_says_whoever_writes(pipeline: Pipeline, objects: Path) -> None:
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
    # Nobody takes the Collection over from the other: then the root would be written each time.
    assert (root / "catalog.json").stat().st_mtime_ns == before


@pytest.mark.clause("OPR-06", "BEY-03")
@pytest.mark.one_database
def test_a_real_volume_whose_chunks_come_in_disorder_is_that_of_the_independent_reader(
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
    (item,) = traces.items(Path(pipeline.settings.catalog)).values()
    answers, properties = reference[f"{folder}/"]["reference"], item["properties"]
    whole = answers["xradar"]
    assert item["id"] == "KLOT20260328_201457_V06"
    assert (properties["nexrad:chunks"], properties["nexrad:complete"]) == (answers["n_chunks"], True)
    assert (properties["nexrad:cuts"], f"VCP-{properties['nexrad:vcp']}") == (whole["nsweeps"], whole["scan_name"])
    for name, expected in (("start_datetime", "time_coverage_start"), ("end_datetime", "time_coverage_end")):
        said, told = (datetime.fromisoformat(text) for text in (properties[name], whole[expected]))
        assert abs(said - told) < timedelta(seconds=1)
    place = [properties[f"nexrad:{name}"] for name in ("latitude", "longitude", "height-m")]
    assert place == pytest.approx([whole[name] for name in ("latitude", "longitude", "altitude")], abs=1e-6)
    assert traces.statuses(pipeline) == {Status.SUCCEEDED: answers["n_chunks"]}
    traces.assert_once(traces.events(Path(pipeline.settings.lineage)))


def plan(seed: int) -> list[list[StoredObject]]:
    """Chunks, and in half of the plans the archive's object, in some order and some batches, some of them twice."""
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
    """Return the Item of one object that no other came before."""

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
@pytest.mark.one_database
@pytest.mark.parametrize("seed", range(8))
def test_the_item_is_that_of_the_last_chunk_or_the_archive_s_in_every_order(
    seed: int, pipeline: Pipeline, objects: Path, item_alone: Callable[[StoredObject], dict[str, Any]]
) -> None:
    for number, batch in enumerate(plan(seed)):
        arrive(pipeline, objects, *batch, name=f"{number}-")
        work(pipeline, f"run-{number}")
    work_until_done(pipeline)
    assert everything(pipeline)["item"] == item_alone(WHOLE if seed % 2 else E)
    assert traces.statuses(pipeline) == {Status.SUCCEEDED: 5 if seed % 2 else 4}
