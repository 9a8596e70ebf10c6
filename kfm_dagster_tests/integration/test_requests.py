"""Objects of a remote store: what a unit costs in requests, and one that is written again while a run reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.contracts.issues import IntegrityIssue
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.demo.samples.gfs import gfs_samples
from kfm_dagster.demo.samples.goes_abi import goes_abi_samples
from kfm_dagster.demo.samples.goes_glm import goes_glm_samples
from kfm_dagster.demo.samples.hrrr import hrrr_samples
from kfm_dagster.demo.samples.mrms import mrms_samples
from kfm_dagster.demo.samples.nbm import nbm_samples
from kfm_dagster.demo.samples.nexrad_level2 import nexrad_level2_samples
from kfm_dagster.ingest.nodes import IntegrityCheck, MetadataExtract, Source
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.readers import nexrad_level2
from kfm_dagster.readers.goes_glm import FIRST_BYTES
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster.storage.read_ahead import ReadAhead
from kfm_dagster.storage.s3 import S3Bucket
from kfm_dagster_tests.clouds import emptied
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import (
    DAY,
    StoredObject,
    good,
    notify,
    notify_each,
    open_pipeline,
    put,
    run_chain,
    run_pending,
    volumes,
)

Samples = Callable[[date, int], Iterator[tuple[str, str, bytes]]]
UNITS = 3


def lightning(day: date, count: int) -> Iterator[tuple[str, str, bytes]]:
    """GLM files with flashes; one without any is so small that the first request has all of it."""
    large = (found for found in goes_glm_samples(day, 4 * count) if len(found[2]) > FIRST_BYTES)
    return islice(large, count)


SAMPLES: dict[str, tuple[Samples, int]] = {
    "goes-abi": (goes_abi_samples, 1),
    "goes-glm": (lightning, 2),
    "nexrad-l2": (nexrad_level2_samples, 1),
    "hrrr": (hrrr_samples, 2),
    "gfs": (gfs_samples, 2),
    "nbm": (nbm_samples, 2),
    "mrms": (mrms_samples, 1),
}
"""Dataset > its samples, and the requests that an object of theirs costs: a model's index is a second object."""


@pytest.fixture
def s3(aws: EmbeddedCloud) -> Any:
    return emptied(aws).client("s3")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys in the order in which they were asked for."""
    keys: list[str] = []
    get = S3Bucket.get

    def counted(bucket: S3Bucket, path: str, **options: Any) -> Any:
        keys.append(path)
        return get(bucket, path, **options)

    monkeypatch.setattr(S3Bucket, "get", counted)
    return keys


@pytest.mark.parametrize("dataset", SAMPLES)
def test_the_first_bytes_of_an_object_are_requested_once_and_say_the_same(
    s3: Any, asked: list[str], dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples, requests = SAMPLES[dataset]
    stored = [good(*sample) for sample in samples(DAY, UNITS)]
    for bucket in {item.bucket for item in stored}:
        s3.create_bucket(Bucket=bucket)
    for item in stored:
        s3.put_object(Bucket=item.bucket, Key=item.key, Body=item.stored)
    remote = _metadata(tmp_path / "remote", None, dataset, stored)
    assert len(remote) == UNITS
    assert set(Counter(key.removesuffix(".idx") for key in asked).values()) == {requests}
    put(tmp_path / "objects", stored)
    assert _metadata(tmp_path / "folder", tmp_path / "objects", dataset, stored) == remote
    asked.clear()
    monkeypatch.setattr(ReadAhead, "take", lambda *_: b"")
    assert _metadata(tmp_path / "again", None, dataset, stored) == remote
    assert set(Counter(key.removesuffix(".idx") for key in asked).values()) == {requests + 1}


def _metadata(home: Path, objects: Path | None, dataset: str, stored: list[StoredObject]) -> dict[str, Any]:
    pipeline = open_pipeline(home, objects)
    data = [item for item in stored if not item.key.endswith(".idx")]
    notify(pipeline, *data)
    batch = run_chain(pipeline, dataset, DAY.isoformat(), "run", Source.LEDGER)
    pipeline.close()
    return {unit.key: unit.metadata for unit in batch.envelopes}


@pytest.mark.clause("BEY-04")
def test_an_object_written_again_after_its_check_gives_no_item_of_two_versions(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Less than a header, so that the rest is requested after the object is another one.
    monkeypatch.setattr(nexrad_level2, "FIRST_BYTES", 100)
    pipeline = open_pipeline(tmp_path / "home", None)
    rewritten, left = volumes(2)
    s3.create_bucket(Bucket=left.bucket)
    for item in (rewritten, left):
        s3.put_object(Bucket=item.bucket, Key=item.key, Body=item.stored)
    notify_each(pipeline, rewritten, left)
    read = []

    def write_again(batch: StageBatch) -> None:
        operator = batch.state.dataset_id.partition(".")[2]
        if operator == IntegrityCheck.operator:
            s3.put_object(Bucket=rewritten.bucket, Key=rewritten.key, Body=left.stored)
        if operator == MetadataExtract.operator:
            read.extend(batch.envelopes)

    run_pending(pipeline, "run", seen=write_again)
    issues = {unit.key: [issue.code for issue in unit.issues] for unit in read}
    assert issues == {rewritten.key: [IntegrityIssue.STORAGE_UNAVAILABLE], left.key: []}
    records = {
        record.object_uri.partition(f"{left.bucket}/")[2]: record for record in traces.records(pipeline).values()
    }
    assert (records[rewritten.key].status, records[rewritten.key].stac_item_id) == (Status.FAILED, None)
    assert records[left.key].status is Status.SUCCEEDED
    pipeline.close()
