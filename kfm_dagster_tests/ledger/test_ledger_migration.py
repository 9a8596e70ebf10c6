"""A ledger that release 0.1.0 made (schema 4) goes on under this one, and loses nothing on the way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.ledger.record import replay_history
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.storage import database as module
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.statements import migrations
from kfm_dagster_tests.factories import envelope, finished
from kfm_dagster_tests.ledger.bench import make_bench, without_jitter

RELEASED = 4
NOON = datetime(2025, 12, 3, 12, tzinfo=UTC)
INSERT = """
INSERT INTO nodd_wal_records (
    wal_id, dataset, object_uri, provider, queue, event_time, time_range_start, time_range_end, status, attempts,
    integrity_status, metadata_status, stac_status, provenance_status, created_at, updated_at, version, partition_key,
    priority, schema_version, changed_by, change_reason, extension
)
VALUES (
    :wal_id, 'nexrad-l2', :uri, 'aws', 'q', :at, :at, :at, 'pending', 0, 'unknown', 'unknown', 'unknown', 'unknown',
    :at, :at, 1, '2025-12-03', 'normal', '2.1', 'old', 'discovered', '{}'
)
"""
CLAIM = """
UPDATE nodd_wal_records SET
    status = 'in_progress', attempts = 1, last_attempt_at = :at, updated_at = :at, ingest_run_id = 'run-1',
    worker_id = 'old', changed_by = 'old', change_reason = 'claimed', version = 2
WHERE wal_id = :wal_id
"""


def test_records_history_and_claims_of_the_last_release_are_taken_over(
    empty_database_url: str, contracts: ContractRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, claimed = envelope(1), envelope(2)
    with monkeypatch.context() as earlier:
        earlier.setattr(module, "migrations", lambda dialect: migrations(dialect)[:RELEASED])
        old = Database.open(empty_database_url)
        at = "2025-12-03T12:00:00.000000Z"
        with old.transaction() as tx:
            for unit in (waiting, claimed):
                tx.connection.execute(sa.text(INSERT), {"wal_id": unit.wal_id, "uri": unit.object_uri, "at": at})
            claim = CLAIM.replace(":at", "CAST(:at AS timestamptz)") if old.dialect == "postgresql" else CLAIM
            tx.connection.execute(sa.text(claim), {"wal_id": claimed.wal_id, "at": at})
            before = {row["wal_id"]: dict(row) for row in _rows(tx)}
        old.dispose()

    database = Database.open(empty_database_url)
    bench = make_bench(database, without_jitter(contracts))
    with database.snapshot() as tx:
        after = {row["wal_id"]: dict(row) for row in _rows(tx)}
    assert {wal_id: {name: row[name] for name in before[wal_id]} for wal_id, row in after.items()} == before
    assert {(row["lane"], row["replay_run_id"]) for row in after.values()} == {("live", None)}
    for unit in (waiting, claimed):
        record = bench.ledger.get(unit.wal_id)
        assert record is not None
        assert record.lane is Lane.LIVE
        assert replay_history(bench.ledger.history(unit.wal_id)) == record

    # The claim's worker goes on, or its lease runs out as if it had been made under this release.
    (lease,) = bench.ledger.leases.all()
    assert (lease.run_id, lease.dataset, lease.worker_id) == ("run-1", "nexrad-l2", "old")
    assert (lease.renewed_at, lease.expires_at) == (NOON, NOON + timedelta(seconds=960))
    bench.clock.now = NOON + timedelta(seconds=959)
    assert bench.ledger.release_lost().readmitted == ()
    bench.clock.now = NOON + timedelta(seconds=961)
    assert bench.ledger.release_lost().readmitted == (claimed.wal_id,)
    units = bench.claim(run_id="run-2")
    bench.ledger.settle([finished(unit) for unit in units], run_id="run-2")
    assert bench.ledger.counts()["nexrad-l2"][Status.SUCCEEDED] == 2
    for unit in (waiting, claimed):
        assert replay_history(bench.ledger.history(unit.wal_id)) == bench.ledger.get(unit.wal_id)
    database.dispose()


def _rows(tx: module.Transaction) -> list[sa.RowMapping]:
    return list(tx.connection.execute(sa.text("SELECT * FROM nodd_wal_records ORDER BY wal_id")).mappings())
