"""A ledger on PostgreSQL while a backup or a forgotten session holds a snapshot.

    python -m benchmarks.pressure [--rate UNITS/S] [--seconds N] [--clean-seconds N] [--json]

Meanwhile no dead row can be removed, so old versions of rows remain, and every query reads past them. The same work
runs three times: before the snapshot, under it, and after it. One batch at a time is recorded, claimed and settled, in
one dataset and day, where row versions cost most; only the ledger's own calls are timed. `--rate` limits the work, for
example to the rate of a deployment. Without it, the work has the maximum rate of the database. Does not belong here:
the cost of other statements (`ledger.py`).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from statistics import fmean

import click
import sqlalchemy as sa

from benchmarks.command import in_one_line
from benchmarks.ledger import fresh
from kfm_dagster.cli.tables import show_rows
from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.factories import envelope, finished
from kfm_dagster_tests.ledger.bench import DAY, Bench, make_bench

BATCH = 500
"""Units of a transaction: the units of a dataset in a run of a busy hour."""
BATCHES_PER_TICK = 10
"""Batches between the sensors' queries for lost claims and pending units."""
CALLS = ("ensure", "claim", "settle", "recover", "waiting")
"""Calls of each batch, and the sensors' queries: lost claims, pending units by day."""
SITES = 50
WARM_SECONDS = 5.0
MINUTE = 60.0
COUNTERS = """
SELECT
    pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0') AS wal_bytes,
    (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()) AS commits,
    (SELECT sum(n_tup_upd) FROM pg_stat_user_tables) AS updates,
    (SELECT sum(n_tup_hot_upd) FROM pg_stat_user_tables) AS hot_updates,
    (SELECT sum(n_dead_tup) FROM pg_stat_user_tables) AS dead_rows,
    (SELECT sum(pg_total_relation_size(relid)) FROM pg_stat_user_tables) AS bytes
"""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Figures of a phase; `first_per_second` and `last_per_second`: its first and last minute.

    Rates count only the time of the ledger's calls, `done_per_second` the whole time. `ms_per_batch` is the time of
    each call in the last minute.
    """

    name: str
    units: int
    done_per_second: float
    units_per_second: float
    first_per_second: float
    last_per_second: float
    wal_bytes_per_unit: float
    commits_per_unit: float
    hot_share: float
    dead_rows: int
    mebibytes: float
    ms_per_batch: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Seconds from the first batch's begin to this batch's begin, and of each ledger call."""

    began: float
    calls: dict[str, float]

    @property
    def seconds(self) -> float:
        """All calls together."""
        return sum(self.calls.values())


def measure(url: str, *, seconds: float, clean_seconds: float, rate: float = 0.0) -> list[Phase]:
    """Work before, under and after a snapshot that is held for `seconds`, in a new database.

    `rate` is the maximum in units a second; 0: no maximum.
    """
    database = Database.open(url)
    bench, numbers = make_bench(database, ContractRegistry.load()), count()
    _work(bench, numbers, seconds=WARM_SECONDS, rate=rate)
    phases = [_phase("before", bench, numbers, clean_seconds, rate)]
    with _held_snapshot(database):
        phases.append(_phase("under", bench, numbers, seconds, rate))
    phases.append(_phase("after", bench, numbers, clean_seconds, rate))
    database.dispose()
    return phases


def _phase(name: str, bench: Bench, numbers: Iterator[int], seconds: float, rate: float) -> Phase:
    before, begun = _counters(bench.database), time.monotonic()
    batches = _work(bench, numbers, seconds=seconds, rate=rate)
    passed, now = time.monotonic() - begun, _counters(bench.database)
    units = BATCH * len(batches)
    last = [batch for batch in batches if batch.began > batches[-1].began - MINUTE]
    return Phase(
        name=name,
        units=units,
        done_per_second=units / passed,
        units_per_second=_rate(batches),
        first_per_second=_rate([batch for batch in batches if batch.began < MINUTE]),
        last_per_second=_rate(last),
        wal_bytes_per_unit=(now["wal_bytes"] - before["wal_bytes"]) / units,
        commits_per_unit=(now["commits"] - before["commits"]) / units,
        hot_share=(now["hot_updates"] - before["hot_updates"]) / (now["updates"] - before["updates"]),
        dead_rows=int(now["dead_rows"]),
        mebibytes=now["bytes"] / 2**20,
        ms_per_batch={call: 1000 * fmean(_seconds_of(call, last)) for call in CALLS},
    )


def _rate(batches: Sequence[Batch]) -> float:
    """Return the rate of the ledger's calls in units a second."""
    return BATCH * len(batches) / sum(batch.seconds for batch in batches)


def _seconds_of(call: str, batches: Sequence[Batch]) -> list[float]:
    """Return the seconds of the call in the batches that made it."""
    return [batch.calls[call] for batch in batches if call in batch.calls] or [0.0]


def _work(bench: Bench, numbers: Iterator[int], *, seconds: float, rate: float) -> list[Batch]:
    """Process batches by the ledger, at most at the rate in units a second (0: no maximum)."""
    batches: list[Batch] = []
    begun = time.monotonic()
    while (began := time.monotonic() - begun) < seconds:
        batches.append(Batch(began=began, calls=_batch(bench, next(numbers))))
        if rate:
            time.sleep(max(0.0, begun + len(batches) * BATCH / rate - time.monotonic()))
    return batches


def _batch(bench: Bench, number: int) -> dict[str, float]:
    """Process a batch by the ledger; return the seconds of each call."""
    units = [_unit(number * BATCH + place) for place in range(BATCH)]
    run, calls = f"run-{number}", _Calls()
    bench.clock.advance(1)
    if number % BATCHES_PER_TICK == 0:
        with calls.timed("recover"):
            bench.ledger.release_lost()
        with calls.timed("waiting"):
            bench.ledger.pending_by_partition()
    with calls.timed("ensure"):
        bench.ledger.ensure(units)
    with calls.timed("claim"):
        claimed = bench.ledger.claim(dataset="nexrad-l2", partition=DAY, run_id=run, limit=BATCH)
    if len(claimed) != BATCH:
        raise SystemExit(f"{len(claimed)} units were claimed instead of {BATCH}")
    done = [finished(unit) for unit in claimed]
    with calls.timed("settle"):
        bench.ledger.settle(done, run_id=run)
    return calls.seconds


class _Calls:
    """Seconds by the name of a call."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - begun


def _unit(number: int) -> Envelope:
    # Several objects a second, so that a day has enough of them.
    second, site = divmod(number, SITES)
    return envelope(second, site=f"K{site:03d}", object_version=f"{number:032x}")


@contextmanager
def _held_snapshot(database: Database) -> Iterator[None]:
    engine = sa.create_engine(database.engine.url, isolation_level="REPEATABLE READ", poolclass=sa.NullPool)
    with engine.connect() as session:
        session.exec_driver_sql("SELECT count(*) FROM nodd_wal_records").scalar_one()
        yield


def _counters(database: Database) -> dict[str, float]:
    with database.engine.connect() as connection:
        connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
        return {name: float(value) for name, value in connection.exec_driver_sql(COUNTERS).mappings().one().items()}


@click.command(context_settings={"max_content_width": 100})
@click.option(
    "--seconds", default=600.0, show_default=True, type=click.FloatRange(1), help="Seconds under the snapshot."
)
@click.option(
    "--clean-seconds", default=120.0, show_default=True, type=click.FloatRange(1), help="Seconds before and after it."
)
@click.option("--rate", default=0.0, type=click.FloatRange(0), help="Maximum units a second. Default: no maximum.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def main(*, seconds: float, clean_seconds: float, rate: float, as_json: bool) -> None:
    """Work on a new PostgreSQL before, under and after a held snapshot, and print the figures.

    Example: python -m benchmarks.pressure --seconds 60 --clean-seconds 30
    """
    with fresh("postgresql") as url:
        phases = measure(url, seconds=seconds, clean_seconds=clean_seconds, rate=rate)
    if as_json:
        click.echo(json.dumps({"rate": rate, "phases": [asdict(phase) for phase in phases]}))
        return
    show_rows(
        [{name: _shown(value) for name, value in asdict(phase).items()} for phase in phases], tuple(asdict(phases[0]))
    )
    clean = phases[0].units_per_second
    for phase in phases[1:]:
        click.echo(
            f"{phase.name}: {phase.units_per_second / clean:.2f} of the rate before, "
            f"{phase.first_per_second / clean:.2f} in its first minute, {phase.last_per_second / clean:.2f} in its last"
        )


def _shown(value: object) -> object:
    if isinstance(value, dict):
        return " ".join(f"{name}={number:.1f}" for name, number in value.items())
    return round(value, 3) if isinstance(value, float) else value


if __name__ == "__main__":
    sys.exit(in_one_line("pressure", main))
