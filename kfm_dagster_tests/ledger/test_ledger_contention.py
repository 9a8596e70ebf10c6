"""Real processes that want the same records at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.factories import envelope
from kfm_dagster_tests.ledger.bench import DAY, make_bench
from kfm_dagster_tests.ledger.claimer import BITE, contend

PROCESSES = 8
RECORDS = 3_000
"""A sample of what `make soak` has."""


@pytest.mark.clause("WSM-13", "WSM-04", "WAL-12")
def test_contending_processes_give_every_record_one_winner_and_one_attempt(
    database: Database, contracts: ContractRegistry, figure: Callable[[str], None]
) -> None:
    bench = make_bench(database, contracts)
    bench.ledger.ensure([envelope(number) for number in range(RECORDS)])
    found = contend(database.engine.url.render_as_string(hide_password=False), day=DAY, processes=PROCESSES)
    records = bench.ledger.find(limit=RECORDS + 1)
    winners = {wal_id: name for name, ids in found.won.items() for wal_id in ids}
    assert sum(len(ids) for ids in found.won.values()) == len(winners) == RECORDS
    assert {record.wal_id: record.ingest_run_id for record in records} == winners
    assert Counter((record.status, record.attempts, record.version) for record in records) == {
        ("in_progress", 1, 2): RECORDS
    }
    # Of some hundred transactions that counted side by side, no count is lost, and few rows are left to add up.
    claims = [count for count in bench.ledger.move_counts() if count.to_status == "in_progress"]
    assert [(count.attempt, count.moves) for count in claims] == [(1, RECORDS)]
    assert bench.ask("SELECT count(*) AS rows FROM metric_totals")[0]["rows"] < RECORDS / BITE / 2
    # A race in which one process took everything would prove nothing.
    assert sum(1 for ids in found.won.values() if ids) > PROCESSES // 2
    figure(f"{RECORDS / found.seconds:,.0f} claims a second by {PROCESSES} processes on {database.dialect}")
