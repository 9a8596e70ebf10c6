"""One process that claims until nothing is left: `python -m kfm_dagster_tests.ledger.claimer URL RUN DAY`.

It says `ready`, waits for a line on its standard input, and prints the ids it won as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.storage.database import Database

BITE = 5
"""Units of one claim; small, so that the processes meet often."""
WORK_SECONDS = 0.005
"""Pause after a claim: without it SQLite's lock goes back to the one that has just held it."""


def main(url: str, run_id: str, day: str) -> None:
    database = Database.open(url)
    ledger = Ledger(database, registry=ContractRegistry.load(), worker_id=run_id, clock=lambda: datetime.now(UTC))
    print("ready", flush=True)  # noqa: T201, the parent reads it
    sys.stdin.readline()
    won: list[str] = []
    while claimed := ledger.claim(dataset="nexrad-l2", partition=day, run_id=run_id, limit=BITE):
        won += [unit.wal_id for unit in claimed]
        time.sleep(WORK_SECONDS)
    database.dispose()
    print(json.dumps(won))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
