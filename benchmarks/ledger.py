"""A ledger of a million records: the cost of its daily statements.

    python benchmarks/ledger.py --records 1000000 --database sqlite|postgresql

The product's own statements write records, history, outcomes, leases and deliveries, in batches, so every row is legal
and has its real size. Most units have succeeded; 1 % failed and are due, 1 % failed and are not due, 1 % are
quarantined; the last days have pending units and claims. Belongs here: filling and timing. Does not belong here:
whether a plan uses its index, which a test checks (`kfm_dagster_tests/ledger/test_ledger_plans.py`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import sqlalchemy as sa

from benchmarks.databases import SERVER
from benchmarks.postgres import embedded_postgres
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.ledger.deliveries import Deliveries
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.recovery.replay.selection import Selection, selection_of
from kfm_dagster.recovery.replay.units import select
from kfm_dagster.storage.database import Database, Transaction

NOW = datetime(2026, 3, 1, tzinfo=UTC)
CELL = 5_000
"""Units of a dataset and day, filled in one transaction."""
DATASETS = ("goes-abi", "nexrad-l2", "hrrr")
PENDING_CELLS = 2
CLAIMED_CELLS = 3
"""Numbers of the newest cells with pending units, and of cells with a thousand units in progress in one run."""
CLAIMS = 1_000
FILLING_CACHE_KIB = 512 * 1024
"""SQLite's page cache during filling. Keys are random, so with a smaller cache each cell rewrites most index pages."""
TARGET_MILLISECONDS = 100.0
SUCCESS = {
    "integrity_status": "ok",
    "metadata_status": "ok",
    "stac_status": "created",
    "provenance_status": "ok",
    "stac_collection_id": "c",
}


@dataclass(frozen=True, kw_only=True)
class Figure:
    """The time of a statement; `target` is its limit, None without a limit."""

    name: str
    milliseconds: float
    target: float | None

    def __str__(self) -> str:
        verdict = (
            ""
            if self.target is None
            else f"  {'under' if self.milliseconds < self.target else 'OVER'} {self.target:.0f}"
        )
        return f"{self.name:<44}{self.milliseconds:>10.1f} ms{verdict}"


@dataclass(kw_only=True)
class Filling:
    """Creates the records cell by cell, the oldest day first."""

    database: Database
    records: int
    settled: bool = False
    """Whether all units of the records have succeeded, so that no work is left."""
    made: int = 0

    def fill(self) -> None:
        """Create all records."""
        least = 1 if self.settled else PENDING_CELLS + CLAIMED_CELLS
        cells = max(self.records // CELL, least)
        for number in range(cells):
            kept = PENDING_CELLS + CLAIMED_CELLS if self.settled else cells - number - 1
            with self.database.transaction() as tx:
                if self.database.dialect == "sqlite":
                    tx.connection.exec_driver_sql(f"PRAGMA cache_size = -{FILLING_CACHE_KIB}")
                self._cell(
                    tx,
                    number,
                    pending=kept < PENDING_CELLS,
                    claimed=PENDING_CELLS <= kept < PENDING_CELLS + CLAIMED_CELLS,
                )
            self.made += CELL
            if sys.stderr.isatty():
                print(f"\r{self.made:,} records", end="", file=sys.stderr)  # noqa: T201

    def _cell(self, tx: Transaction, number: int, *, pending: bool, claimed: bool) -> None:
        units = [_unit(number, place) for place in range(CELL)]
        stamp = {"at": units[-1]["event_time"], "actor": "benchmark"}
        tx.run("ledger.ensure", stamp, batch=units, lane="live")
        self._deliver(tx, units, stamp, gone=[] if pending else [unit["wal_id"] for unit in units])
        if pending:
            return
        run_id = f"run-{number}"
        where = {"dataset": units[0]["dataset"], "partition": units[0]["partition_key"], "run_id": run_id}
        everything = {
            **where,
            "limit": CELL,
            "lane": None,
            "wal_ids": None,
            "batch_limit": None,
            "worker_id": "benchmark",
            "at": stamp["at"],
        }
        tx.run("ledger.claim", everything).close()
        self._settle(tx, units[CLAIMS:] if claimed else units, run_id, stamp)
        if claimed:
            # The leases of the runs end one after the other, an hour apart.
            lease = {"worker_id": "benchmark", "expires_at": rfc3339(NOW + timedelta(hours=1 + number % CLAIMED_CELLS))}
            tx.run("ledger.acquire_lease", where | lease, at=stamp["at"])

    def _settle(self, tx: Transaction, units: list[dict[str, Any]], run_id: str, stamp: dict[str, str]) -> None:
        ends: dict[str, list[dict[str, Any]]] = {"failed": [], "quarantined": [], "succeeded": []}
        for place, unit in enumerate(units):
            claim = {"wal_id": unit["wal_id"], "attempt": 1}
            kind = place % 100
            if kind < 3 and not self.settled:
                due = NOW + timedelta(hours=-1 if kind == 0 else 24)
                trouble = {"error_code": "missing_object", "error_message": "the object is not there"}
                unknown = dict.fromkeys(("metadata_status", "stac_status", "provenance_status"), "unknown")
                row = claim | trouble | unknown | {"integrity_status": "failed", "next_attempt_at": rfc3339(due)}
                ends["failed" if kind < 2 else "quarantined"].append(row)
            else:
                item = {"stac_item_id": unit["wal_id"], "stac_item_href": f"{unit['dataset']}/{unit['wal_id']}.json"}
                ends["succeeded"].append(claim | SUCCESS | item)
        out = [row["wal_id"] for row in ends["quarantined"]]
        for status, batch in (("succeeded", ends["succeeded"]), ("failed", ends["failed"] + ends["quarantined"])):
            tx.run("ledger.settle", stamp, status=status, batch=batch, run_id=run_id).close()
        tx.run("ledger.quarantine", stamp, wal_ids=out, reason="attempts_exhausted").close()
        outcomes = [
            {"wal_id": row["wal_id"], "attempt": 1, "item_sha256": "0" * 64, "superseded": False}
            for row in ends["succeeded"]
        ]
        tx.run("ledger.record_outcomes", batch=outcomes, run_id=run_id, at=stamp["at"], code_version="0.1.0")

    def _deliver(self, tx: Transaction, units: list[dict[str, Any]], stamp: dict[str, str], *, gone: list[str]) -> None:
        messages = [
            {
                "message_id": f"m-{unit['wal_id']}",
                "queue": "kfm-nodd-primary",
                "receipt_handle": "r" * 100,
                "receives": 1,
                "landing_sha256": "0" * 64,
                "state": "in_flight",
            }
            for unit in units
        ]
        pairs = [{"message_id": f"m-{unit['wal_id']}", "wal_id": unit["wal_id"]} for unit in units]
        tx.run("deliveries.record", batch=messages, at=stamp["at"])
        tx.run("deliveries.record_units", batch=pairs)
        deleted = {"message_ids": [f"m-{wal_id}" for wal_id in gone], "state": "deleted"}
        tx.run("deliveries.mark", deleted, at=stamp["at"])


@dataclass(kw_only=True)
class Timing:
    """Times the statements of a filled ledger; each figure is the median of its repetitions."""

    database: Database
    registry: ContractRegistry
    repetitions: int = 5
    figures: list[Figure] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger = self._ledger(NOW)
        self.deliveries = Deliveries(self.database, clock=lambda: NOW)

    def measure(self) -> list[Figure]:
        """Time all statements, the reading statements first."""
        self._lists()
        self._accounts()
        self._replays()
        self._changes()
        return self.figures

    def _lists(self) -> None:
        old = (NOW - timedelta(days=60)).date().isoformat()
        last = self._found(limit=100)[-1]
        cases: dict[str, dict[str, Any]] = {
            "wal list": {},
            "wal list --status failed": {"status": Status.FAILED},
            "wal list --status succeeded": {"status": Status.SUCCEEDED},
            "wal list --dataset": {"dataset": "nexrad-l2"},
            "wal list --partition (old)": {"partition": old},
            "wal list --partition --dataset": {"partition": old, "dataset": "hrrr"},
            "wal list --error-code": {"code": "missing_object"},
            "wal list --error-code (no match)": {"code": "no_such_code"},
            "wal list, every filter": {
                "status": Status.FAILED,
                "dataset": "hrrr",
                "partition": old,
                "code": "missing_object",
            },
            "wal list, next page": {"until": last.event_time},
        }
        for name, filters in cases.items():
            self._time(name, partial(self._found, limit=100, **filters), TARGET_MILLISECONDS)

    def _accounts(self) -> None:
        self._time("pending by partition", self.ledger.pending_by_partition, TARGET_MILLISECONDS)
        self._time("units in flight", partial(self.ledger.in_flight, today=NOW.date()), TARGET_MILLISECONDS)
        self._time(
            "messages due for deletion", lambda: self.deliveries.due_for_deletion(limit=10_000), TARGET_MILLISECONDS
        )
        self._time("counts (a metric)", self._counts, None)
        self._time("conservation (a metric)", self.deliveries.conservation, None)

    def _replays(self) -> None:
        for name, filters, mode in (
            ("replay select, 5,000 failed of a dataset", {"datasets": ["goes-abi"]}, "failed-only"),
            ("replay select, 5,000 failed of all", {}, "failed-only"),
            (
                "replay select, 5,000 succeeded in a window",
                {"datasets": ["hrrr"], "status": ["succeeded"]},
                "repair-and-replace",
            ),
        ):
            window = {"start": rfc3339(NOW - timedelta(days=60)), "end": rfc3339(NOW)}
            selection = _selection(mode, {**filters, "event_time": window})
            self._time(name, partial(self._select, selection), TARGET_MILLISECONDS)

    def _changes(self) -> None:
        ledger, numbers = self.ledger, count()
        where = max(ledger.pending_by_partition(), key=lambda entry: entry.units)

        def claim() -> None:
            run_id = f"claims-{next(numbers)}"
            with self.database.transaction() as tx:
                claimed = ledger.claim(
                    dataset=where.dataset, partition=where.partition, run_id=run_id, limit=CLAIMS, tx=tx
                )
            _expect(len(claimed))

        self._time("recovery scan, no lost claim", lambda: self._released(NOW), TARGET_MILLISECONDS)
        self._time(f"claim of {CLAIMS:,}", claim, TARGET_MILLISECONDS, repetitions=3)
        self._time("retry_due, 1,000 due", self._retried, None)
        hours = count(1)

        def recover() -> None:
            # Each run has a lease, and each hour one lease ends.
            at = NOW + timedelta(hours=next(hours), minutes=1)
            _expect(self._released(at))

        # The leases of these claims last only minutes; without this update they would count as expired.
        longer = sa.text("UPDATE nodd_wal_leases SET expires_at = :later WHERE substr(ingest_run_id, 1, 7) = 'claims-'")
        with self.database.transaction() as tx:
            tx.connection.execute(longer, {"later": rfc3339(NOW + timedelta(days=1))})
        # Two transitions per unit, to failed and to pending.
        self._time(f"recovery, {CLAIMS:,} expired claims", recover, None, repetitions=CLAIMED_CELLS)

    def _found(self, **filters: Any) -> list[NoddWalRecord]:
        with self.database.snapshot() as tx:
            return self.ledger.find(**filters, tx=tx)

    def _counts(self) -> None:
        with self.database.snapshot() as tx:
            self.ledger.counts(tx=tx)

    def _select(self, selection: Selection) -> None:
        with self.database.snapshot() as tx:
            select(selection, registry=self.registry, limit=5_000, tx=tx)

    def _ledger(self, moment: datetime) -> Ledger:
        return Ledger(self.database, registry=self.registry, worker_id="benchmark", clock=lambda: moment)

    def _released(self, moment: datetime) -> int:
        with self.database.transaction() as tx:
            return len(self._ledger(moment).release_lost(tx=tx).requeued)

    def _retried(self) -> None:
        with self.database.transaction() as tx:
            self.ledger.retry_due(now=NOW, limit=1_000, tx=tx)

    def _time(
        self, name: str, work: Callable[[], Any], target: float | None, *, repetitions: int | None = None
    ) -> None:
        taken = []
        for _ in range(repetitions or self.repetitions):
            begun = time.perf_counter()
            work()
            taken.append(1000 * (time.perf_counter() - begun))
        self.figures.append(Figure(name=name, milliseconds=statistics.median(taken), target=target))


def run(*, records: int, url: str) -> tuple[float, list[Figure]]:
    """Fill the database if it is empty; return the seconds of filling, and the timings."""
    database = Database.open(url)
    begun = time.perf_counter()
    with database.snapshot() as tx:
        is_filled = any(sum(by_status.values()) for by_status in _questions(database).counts(tx=tx).values())
    if not is_filled:
        filled(database, records)
    seconds = time.perf_counter() - begun
    figures = Timing(database=database, registry=ContractRegistry.load()).measure()
    database.dispose()
    return seconds, figures


def filled(database: Database, records: int, *, settled: bool = False) -> int:
    """Fill an empty database in cells of 5,000 records; return the number of records."""
    filling = Filling(database=database, records=records, settled=settled)
    filling.fill()
    if database.dialect == "postgresql":
        # The work of autovacuum and checkpointer after filling is done here, so that it is not measured.
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("VACUUM ANALYZE")
            connection.exec_driver_sql("CHECKPOINT")
    return filling.made


@contextmanager
def fresh(kind: str, *, folder: Path | None = None) -> Iterator[str]:
    """Yield the URL of a database of this kind; a database in `folder` is kept for later calls."""
    with tempfile.TemporaryDirectory(prefix="kfm-benchmark-", ignore_cleanup_errors=True) as temporary:
        home = folder or Path(temporary)
        if kind == "sqlite":
            yield f"sqlite:///{home / 'ledger.db'}"
        else:
            home.chmod(0o755)  # the server may run as a user of its own
            with embedded_postgres(home / "data", settings=SERVER) as url:
                yield url


def _questions(database: Database) -> Ledger:
    return Ledger(database, registry=ContractRegistry.load(), worker_id="benchmark", clock=lambda: NOW)


def _selection(mode: str, filters: dict[str, Any]) -> Selection:
    document = {
        "apiVersion": "kfm.nodd.replay/v1",
        "kind": "ReplaySelection",
        "metadata": {"name": "benchmark", "env": "dev"},
        "spec": {"mode": mode, "filters": filters},
    }
    return selection_of(document, source="benchmark")


def _unit(cell: int, place: int) -> dict[str, Any]:
    number = cell * CELL + place
    digest = hashlib.md5(str(number).encode(), usedforsecurity=False).hexdigest()
    start = NOW - timedelta(days=1 + 70 - (cell // len(DATASETS)) % 71) + timedelta(seconds=17 * place)
    text = rfc3339(start)
    dataset = DATASETS[cell % len(DATASETS)]
    return {
        "wal_id": f"{digest[:8]}-{digest[8:12]}-8{digest[13:16]}-8{digest[17:20]}-{digest[20:]}",
        "dataset": dataset,
        "object_uri": f"s3://noaa-{dataset}/{text[:10]}/an-object-with-a-name-of-usual-length-{number:012d}.nc",
        "provider": "aws",
        "queue": "kfm-nodd-primary",
        "event_time": text,
        "time_range_start": text,
        "time_range_end": text,
        "object_version": digest,
        "object_size": 4_000_000,
        "sequencer": f"{number:018X}",
        "partition_key": text[:10],
        "priority": "high",
        "schema_version": "2.1",
        "sqs_message_id": f"m-{digest}",
        "sns_message_id": digest,
        "topic_arn": "arn:aws:sns:us-east-1:123901341784:NewGOES19Object",
        "subject": "Amazon S3 Notification",
        "extension": {"product": "ABI-L1b-RadC", "scene": "C", "band": "13", "satellite": "19"},
    }


def _expect(units: int) -> None:
    if units != CLAIMS:
        raise SystemExit(f"{units} units instead of {CLAIMS}: the ledger is too small, or was timed before")


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def main() -> None:
    """Fill, time, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--folder", type=Path, help="folder that keeps the database; an existing database is used")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if options.folder:
        options.folder.mkdir(parents=True, exist_ok=True)
    with fresh(options.database, folder=options.folder) as url:
        seconds, figures = run(records=options.records, url=url)
    if options.json:
        print(json.dumps({"seconds": seconds, "figures": [vars(figure) for figure in figures]}))  # noqa: T201
        return
    print(f"{options.records:,} records on {options.database}, made in {seconds:.0f} s")  # noqa: T201
    for figure in figures:
        print(figure)  # noqa: T201


if __name__ == "__main__":
    main()
