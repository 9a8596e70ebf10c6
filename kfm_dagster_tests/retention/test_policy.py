"""`retention.yaml`, which deletes nothing as shipped; retention in S3."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kfm_dagster.configs import CardError, own_folder
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.ingest.configuration import Configuration
from kfm_dagster.notifications.landing import Landing
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.retention import RETENTION, RetentionKind, RetentionPolicy, stored_files
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.objects import open_store
from kfm_dagster_tests.factories import landed_path, received_long_ago

HEAD = 'version: "1.0.0"\nkeep:\n'
LEAST = {"dagster_runs": "1d", "landing": "15d", "artifacts": "8d", "evidence_samples": "1d"}


def loaded(folder: Path, text: str) -> RetentionPolicy:
    (folder / RETENTION).write_text(text, encoding="utf-8")
    return RetentionPolicy.load(folder)


def test_the_shipped_policy_keeps_everything_and_its_comments_name_every_kind(tmp_path: Path) -> None:
    text = (own_folder() / RETENTION).read_text(encoding="utf-8")
    assert RetentionPolicy.load(None).ages == {}
    assert RetentionPolicy.load(tmp_path).ages == {}  # a folder without the file
    shown = text.replace("keep: {}", "keep:").replace("\n#  ", "\n  ")
    assert list(loaded(tmp_path, shown).ages) == list(RetentionKind)


def test_the_least_age_of_a_kind_is_accepted_and_a_smaller_age_is_refused(tmp_path: Path) -> None:
    for kind, least in LEAST.items():
        days = int(least.removesuffix("d"))
        for age in (least, f"{days * 24}h", f"{days * 1440}.0m", f"{days * 86_400}s", f"{days * 86_400_000}ms"):
            assert loaded(tmp_path, f"{HEAD}  {kind}: {age}\n").ages == {RetentionKind(kind): timedelta(days=days)}
        with pytest.raises(CardError, match=rf"retention.yaml line 3: keep.{kind} is wrong.*expected {least} at least"):
            loaded(tmp_path, f"{HEAD}  {kind}: {days * 86_400 - 1}s\n")


def test_an_unknown_kind_and_a_bad_duration_give_an_error_in_one_line(tmp_path: Path) -> None:
    for line, message in (
        ("ledger: 30d", f"unknown key 'ledger'; expected one of {', '.join(RetentionKind)}"),
        ("landings: 30d", "unknown key 'landings'; expected landing"),
        ("landing: 30", "a number and one of ms, s, m, h, d, such as 10m"),
        ("landing: a month", "a number and one of ms, s, m, h, d, such as 10m"),
        ("landing: 4000d", "no more than 3650d"),
    ):
        with pytest.raises(CardError) as refused:
            loaded(tmp_path, f"{HEAD}  {line}\n")
        assert f"{tmp_path / RETENTION} line 3: keep." in str(refused.value)
        assert message in str(refused.value)
        assert "\n" not in str(refused.value)


def test_no_deployment_starts_with_a_wrong_policy(tmp_path: Path) -> None:
    shutil.copytree(own_folder(), tmp_path, dirs_exist_ok=True)
    (tmp_path / RETENTION).write_text(f"{HEAD}  landing: 1d\n", encoding="utf-8")
    with pytest.raises(CardError, match="15d at least: SQS may deliver a message again"):
        Configuration.load(Settings(configs_dir=tmp_path))


BUCKET = "kfm-retention"


@pytest.mark.clause("BEY-10")
@pytest.mark.one_database
def test_old_objects_of_a_bucket_are_deleted_and_other_objects_stay(
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
    left = [entry["Key"] for entry in s3.list_objects_v2(Bucket=BUCKET)["Contents"]]
    assert left == sorted(["other/landing/README", "storage/landing/README", f"storage/{landed_path(landed[5])}"])
