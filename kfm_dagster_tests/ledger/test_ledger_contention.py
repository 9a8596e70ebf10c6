"""Real processes that want the same records at the same time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.factories import envelope
from kfm_dagster_tests.ledger.bench import DAY, make_bench

PROCESSES = 4
RECORDS = 500
ROOT = Path(__file__).resolve().parents[2]


def contend(url: str) -> dict[str, list[str]]:
    """What each of several processes won that began at the same moment."""
    with ExitStack() as stack:
        children = {
            name: stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "kfm_dagster_tests.ledger.claimer", url, name, DAY],
                    cwd=ROOT,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for name in (f"run-{number}" for number in range(PROCESSES))
        }
        for child in children.values():
            assert child.stdout.readline() == "ready\n"
        for child in children.values():
            child.stdin.write("go\n")
            child.stdin.flush()
        return {name: json.loads(child.communicate(timeout=120)[0]) for name, child in children.items()}


@pytest.mark.clause("WSM-13", "WSM-04")
def test_contending_processes_give_every_record_one_winner_and_one_attempt(
    database: Database, contracts: ContractRegistry
) -> None:
    bench = make_bench(database, contracts)
    bench.ledger.ensure([envelope(number) for number in range(RECORDS)])
    won = contend(database.engine.url.render_as_string(hide_password=False))
    records = bench.ledger.find(limit=RECORDS + 1)
    winners = {wal_id: name for name, ids in won.items() for wal_id in ids}
    assert sum(len(ids) for ids in won.values()) == len(winners) == RECORDS
    assert {record.wal_id: record.ingest_run_id for record in records} == winners
    assert Counter((record.status, record.attempts, record.version) for record in records) == {
        ("in_progress", 1, 2): RECORDS
    }
    # A race in which one process took everything would prove nothing.
    assert sum(1 for ids in won.values() if ids) > 1
