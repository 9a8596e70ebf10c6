"""An object that is written again while a run reads it: no Item is made of two versions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from kfm_dagster.contracts.issues import IntegrityIssue
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.ingest.nodes import IntegrityCheck, MetadataExtract, Source
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.readers import nexrad_level2
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster_tests.clouds import emptied
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import DAY, announce, open_pipeline, run_chain, take, volumes


@pytest.fixture
def s3(cloud_server: EmbeddedCloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("AWS_ENDPOINT_URL", emptied(cloud_server).endpoint_url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    client = boto3.client("s3", region_name="us-east-1")
    yield client
    client.close()


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
    take(pipeline, *(announce([item.event()], registry=pipeline.registry) for item in (rewritten, left)))
    read = []

    def write_again(batch: StageBatch) -> None:
        operator = batch.state.dataset_id.partition(".")[2]
        if operator == IntegrityCheck.operator:
            s3.put_object(Bucket=rewritten.bucket, Key=rewritten.key, Body=left.stored)
        if operator == MetadataExtract.operator:
            read.extend(batch.envelopes)

    run_chain(pipeline, "nexrad-l2", DAY.isoformat(), "run", Source.LEDGER, seen=write_again)
    issues = {unit.key: [issue.code for issue in unit.issues] for unit in read}
    assert issues == {rewritten.key: [IntegrityIssue.STORAGE_UNAVAILABLE], left.key: []}
    records = {
        record.object_uri.partition(f"{left.bucket}/")[2]: record for record in traces.records(pipeline).values()
    }
    assert (records[rewritten.key].status, records[rewritten.key].stac_item_id) == (Status.FAILED, None)
    assert records[left.key].status is Status.SUCCEEDED
    pipeline.close()
