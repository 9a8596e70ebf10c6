"""Volumes of the archive through the chain: gzipped twins, and volumes that end early."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from kfm_dagster.ingest.nodes import Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster_tests.catalog.trees import assert_consistent, item_ids
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import DAY, StoredObject, announce, good, put, run_chain, take, volumes
from kfm_dagster_tests.readers.nexrad_bytes import record_ends


def ingest(pipeline: Pipeline, objects: Path, item: StoredObject, run_id: str) -> None:
    put(objects, [item])
    take(pipeline, announce([item.event()], registry=pipeline.registry, name=run_id))
    run_chain(pipeline, "nexrad-l2", DAY.isoformat(), run_id, Source.LEDGER)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["stored first", "gzipped first"])
def test_a_volume_and_its_gzipped_twin_have_an_item_each_in_any_order(
    order: tuple[int, int], make_pipeline: Callable[..., Pipeline], objects: Path
) -> None:
    [plain] = volumes(1)
    twins = plain, good(plain.bucket, f"{plain.key}.gz", gzip.compress(plain.announced))
    pipeline = make_pipeline()
    for number in order:
        ingest(pipeline, objects, twins[number], f"run-{number}")
    assert traces.statuses(pipeline) == {Status.SUCCEEDED: 2}
    name = plain.key.rsplit("/", 1)[-1]
    root = Path(pipeline.settings.catalog)
    assert sorted(item_ids(root)) == [name, f"{name}.gz"]
    items = traces.items(root)
    assert {uri: item["properties"]["nexrad:compression"] for uri, item in items.items()} == {
        plain.uri: "bzip2",
        f"{plain.uri}.gz": "gzip",
    }
    assert len({item["properties"]["end_datetime"] for item in items.values()}) == 1
    assert_consistent(root)


@pytest.mark.clause("OPR-20")
def test_a_volume_cut_between_two_records_is_in_the_catalog_as_suspect_and_says_why(
    make_pipeline: Callable[..., Pipeline], objects: Path
) -> None:
    whole, other = volumes(2)
    *_, end, _ = record_ends(other.announced)
    cut = good(other.bucket, other.key, other.announced[:end])
    pipeline = make_pipeline()
    for number, item in enumerate((whole, cut)):
        ingest(pipeline, objects, item, f"run-{number}")
    records = traces.records(pipeline)
    assert {uri: record.metadata_status for uri, record in records.items()} == {whole.uri: "ok", cut.uri: "suspect"}
    items = traces.items(Path(pipeline.settings.catalog))
    assert "kfm:issues" not in items[whole.uri]["properties"]
    [issue] = items[cut.uri]["properties"]["kfm:issues"]
    assert (issue["operator"], issue["code"], issue["severity"]) == (
        "metadata_extract",
        "completeness_unchecked",
        "suspect",
    )
