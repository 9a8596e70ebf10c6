"""Contention: the rate at which eight processes claim the same records, on both databases.

    python -m benchmarks.contention [--records N]

Every record must have one winner and one attempt. The test of contention
(`test_ledger_plans.py`) uses the same processes.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from itertools import chain

from benchmarks.ledger import fresh
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.factories import envelope
from kfm_dagster_tests.ledger.bench import DAY, make_bench
from kfm_dagster_tests.ledger.claimer import contend

PROCESSES = 8


def run(records: int) -> int:
    """Print a line per database; return 1 unless each record has one winner and one attempt."""
    wrong = False
    for kind in ("sqlite", "postgresql"):
        with fresh(kind) as url:
            database = Database.open(url)
            bench = make_bench(database, ContractRegistry.load())
            bench.ledger.ensure([envelope(number) for number in range(records)])
            race = contend(url, day=DAY, processes=PROCESSES)
            attempts = Counter(record.attempts for record in bench.ledger.find(limit=records + 1))
            database.dispose()
        wins = Counter(chain.from_iterable(race.won.values()))
        single = len(wins) == records == wins.total() and attempts == {1: records}
        wrong = wrong or not single
        verdict = "one winner and one attempt each" if single else f"WRONG: {wins.total()} wins, attempts {attempts}"
        print(  # noqa: T201
            f"{PROCESSES} processes, {records:,} records on {kind}: {verdict}, {records / race.seconds:,.0f} claims/s"
        )
    return 1 if wrong else 0


def main() -> int:
    """Run the contention over `--records` records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=10_000)
    return run(parser.parse_args().records)


if __name__ == "__main__":
    sys.exit(main())
