"""Retention in a bucket of S3, as the embedded cloud has it: listed page by page, deleted object by object."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.notifications.landing import Landing
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.retention import RetentionKind, stored_files
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.objects import open_store
from kfm_dagster_tests.factories import landed_path, received_long_ago

pytestmark = [pytest.mark.clause("BEY-10"), pytest.mark.one_database]

BUCKET = "kfm-retention"


def test_old_objects_of_a_bucket_go_and_others_stay(
    aws: EmbeddedCloud, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3 = aws.client("s3")
    s3.create_bucket(Bucket=BUCKET)
    store = open_store(f"s3://{BUCKET}/storage")
    messages = [SqsMessage(message_id=str(number), body="{}") for number in range(6)]
    landed = [Landing(store).land([message]) for message in messages]
    for batch in landed[:5]:
        received_long_ago(database, batch)
    s3.put_object(Bucket=BUCKET, Key="storage/landing/README", Body=b"somebody's own")
    s3.put_object(Bucket=BUCKET, Key="other/landing/README", Body=b"of another prefix")
    monkeypatch.setattr("kfm_dagster.retention.PAGE", 2)
    monkeypatch.setattr("kfm_dagster.retention.BATCH", 3)
    pruner = stored_files(store, database)[RetentionKind.LANDING]
    now = datetime.now(UTC)
    assert list(pruner.batches(now - timedelta(hours=1))) == []
    for batch in pruner.batches(now + timedelta(hours=1)):
        assert batch.bytes
        pruner.remove(batch)
    left = [found["Key"] for found in s3.list_objects_v2(Bucket=BUCKET)["Contents"]]
    assert left == sorted(["other/landing/README", "storage/landing/README", f"storage/{landed_path(landed[5])}"])
