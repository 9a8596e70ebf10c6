"""`retention.yaml`, which deletes nothing as shipped; retention in S3; the role's rights."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from kfm_dagster.configs import CardError, own_folder
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.ingest.configuration import Configuration
from kfm_dagster.notifications.landing import Landing
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.retention import RETENTION, RetentionKind, RetentionPolicy, stored_files
from kfm_dagster.settings import Settings
from kfm_dagster.stages.card import Card
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.objects import open_store
from kfm_dagster.storage.roles import grant_deployment_role, grant_retention_role
from kfm_dagster_tests.databases import as_role, ask, refusal
from kfm_dagster_tests.factories import envelope, landed_path, received_long_ago
from kfm_dagster_tests.ledger.bench import make_bench

ROOT = Path(__file__).resolve().parents[2]
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
    for name, content in Card.load().files.items():
        (tmp_path / name).write_bytes(content)
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


NO_RIGHT = "42501"
"""PostgreSQL's insufficient_privilege."""


@pytest.fixture
def owner(postgres_url: str, retention_role: str, contracts: Any) -> Iterator[Database]:
    """A migrated database with a quarantined unit, connected as its owner; the role of retention has its rights."""
    opened = Database.open(postgres_url)
    grant_retention_role(opened, retention_role)
    make_bench(opened, contracts).bring_to("quarantined", envelope())
    yield opened
    opened.dispose()


@pytest.fixture
def retention(owner: Database, postgres_url: str, retention_role: str) -> Iterator[Database]:
    """The same database, connected as the role of retention."""
    opened = Database.open(as_role(postgres_url, retention_role))
    yield opened
    opened.dispose()


@pytest.mark.clause("BEY-10", "SEC-07")
def test_the_role_deletes_and_changes_no_row_of_any_table(owner: Database, retention: Database) -> None:
    schema = sa.inspect(owner.engine)
    tables = schema.get_table_names()
    assert {"nodd_wal_records", "nodd_wal_transitions", "governance_log", "quarantine_cases"} <= set(tables)
    accepted = []
    for table in tables:
        column = schema.get_columns(table)[-1]["name"]  # the first can be a number that only the database sets
        typed = [
            f"DELETE FROM {table}",
            f"UPDATE {table} SET {column} = {column}",
            f"TRUNCATE {table} CASCADE",
            f"ALTER TABLE {table} DISABLE TRIGGER ALL",
            f"DROP TABLE {table} CASCADE",
            *([] if table == "governance_log" else [f"INSERT INTO {table} DEFAULT VALUES"]),
        ]
        accepted += [statement for statement in typed if refusal(retention, statement) != NO_RIGHT]
    assert accepted == []
    [kept] = ask(retention, "SELECT count(*) FROM nodd_wal_records")
    assert kept == 1


@pytest.mark.clause("BEY-10", "SEC-07")
def test_a_role_that_was_a_deployments_keeps_none_of_the_deployments_rights(
    owner: Database, retention: Database, retention_role: str
) -> None:
    grant_deployment_role(owner, retention_role)
    grant_retention_role(owner, retention_role)
    assert refusal(retention, "DELETE FROM outbox") == NO_RIGHT
    assert refusal(retention, "UPDATE nodd_wal_records SET status = status") == NO_RIGHT
