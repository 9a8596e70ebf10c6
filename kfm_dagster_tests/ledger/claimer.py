"""Claim until no unit is pending: `python -m kfm_dagster_tests.ledger.claimer URL RUN DAY`.

A process of this program prints `ready`, waits for a line on standard input, and prints its claims and its time as
JSON. `contend` starts several processes and lets all begin at the same time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.transactions import own_tx

ROOT = Path(__file__).resolve().parents[2]
BITE = 20
"""Units of one claim; few, so that the processes meet often."""
WORK_SECONDS = 0.005
"""Pause after a claim: without it the last holder would get SQLite's lock again."""
TIMEOUT_SECONDS = 300


@dataclass(frozen=True, kw_only=True)
class Contention:
    """The ids that each process claimed, by run, and the seconds that the slowest process took."""

    won: Mapping[str, Sequence[str]]
    seconds: float


def contend(url: str, *, day: str, processes: int) -> Contention:
    """Let processes claim a day's pending units, starting at the same time."""
    with ExitStack() as stack:
        children = {
            name: stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "kfm_dagster_tests.ledger.claimer", url, name, day],
                    cwd=ROOT,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for name in (f"run-{number}" for number in range(processes))
        }
        for child in children.values():
            assert child.stdout.readline() == "ready\n"
        for child in children.values():
            child.stdin.write("go\n")
            child.stdin.flush()
        results = {name: json.loads(child.communicate(timeout=TIMEOUT_SECONDS)[0]) for name, child in children.items()}
    return Contention(
        won={name: result["won"] for name, result in results.items()},
        seconds=max(result["seconds"] for result in results.values()),
    )


def main(url: str, run_id: str, day: str) -> None:
    database = Database.open(url)
    ledger = Ledger(database, registry=ContractRegistry.load(), worker_id=run_id, clock=lambda: datetime.now(UTC))
    print("ready", flush=True)  # noqa: T201, the parent reads it
    sys.stdin.readline()
    begun = time.monotonic()
    won: list[str] = []
    while claimed := own_tx(ledger).claim(dataset="nexrad-l2", partition=day, run_id=run_id, limit=BITE):
        won += [unit.wal_id for unit in claimed]
        time.sleep(WORK_SECONDS)
    seconds = time.monotonic() - begun
    database.dispose()
    print(json.dumps({"won": won, "seconds": seconds}))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
