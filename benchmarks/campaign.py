"""A campaign: hundreds of SIGKILLs during ingest, and proof that no unit is lost or doubled.

The workers (`campaign_workers.py`) use a real queue, a real database and real files. A chaos plan kills their processes
at random failpoints, and each killed process is started again. Meanwhile, repeated checks compare the received units
with the sum of the units by status (the balance). At the end every unit must have exactly one terminal record, one STAC
Item and one set of lineage. Run as

    python -m benchmarks.campaign --units 1000 --kills 20 [--database postgresql]

Belongs here: starting and watching. Does not belong here: faults (`fault_injection`), the final check
(`campaign_verdict.py`).
"""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import cycle, islice
from pathlib import Path

import click

from benchmarks.campaign_verdict import CampaignError, assert_whole
from benchmarks.postgres import RestartablePostgres
from benchmarks.store import StoreServer
from benchmarks.strikes import Strike, strikes_on
from fault_injection.counters import FaultCounters
from fault_injection.injector import state_folder
from fault_injection.plan import API_VERSION, load_plan
from fault_injection.producer import Disorder, Producer
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.demo.feed import Feed, ObjectEvent
from kfm_dagster.demo.samples.nexrad_level2 import nexrad_level2_samples
from kfm_dagster.errors import KfmError
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.settings import Settings, environment

DATASET = "nexrad-l2"
FIRST_DAY = date(2025, 4, 1)
DAYS = 4
CREW = ("receiver", "keeper", "worker", "worker")
RESIDENT = "resident"
"""The process that `--worker` adds: a resident worker, which does the work of all other roles over the same queue."""
LEASE_SECONDS = 20
"""Short, so that claims of dead workers are released soon; live workers renew their leases."""
VISIBILITY_SECONDS = 30
KILL_PROBABILITY = 0.003
"""Probability of a kill at a passed failpoint. A unit passes some ten, so this suffices for a kill per fifty units."""
UNITS_PER_RUN = 25
"""With so few units, every second run dies; with hundreds of units, no run would reach its settlement."""
SAMPLE_SECONDS = 0.5
STRIKES = 9
"""Faults of a PostgreSQL server: three of each kind."""


@dataclass(frozen=True, kw_only=True)
class CampaignReport:
    """The campaign's figures. `samples` counts the checks of the balance, which all succeeded."""

    database: str
    units: int
    kills: int
    kills_by_failpoint: dict[str, int]
    strikes: dict[str, int]
    """Faults of the database's server, by kind."""
    samples: int
    most_attempts: int
    seconds: float


def run_campaign(
    home: Path,
    *,
    database_url: str,
    units: int,
    kills: int,
    seed: int = 1,
    timeout_seconds: float = 3600,
    strikes: Sequence[Strike] = (),
    with_worker: bool = False,
    odd_every: int = 0,
) -> CampaignReport:
    """Run a campaign below `home`; the strikes on the database are spread evenly over the kills.

    With `odd_every`, a store serves the objects, with odd answers as in `StoreServer`. Raises CampaignError.
    """
    home.mkdir(parents=True, exist_ok=True)
    registry = ContractRegistry.load()
    plan = _write_plan(home, kills=kills, seed=seed)
    began = time.monotonic()
    with ExitStack() as stack:
        cloud = stack.enter_context(EmbeddedCloud())
        cloud.provision(registry, visibility_timeout=VISIBILITY_SECONDS, max_receive_count=1000)
        events = list(_objects(home / "objects", units))
        variables = cloud.environment() | _variables(home, database_url, plan)
        if odd_every:
            store = stack.enter_context(StoreServer(home / "objects", latency_ms=0, odd_every=odd_every))
            variables |= store.environment(all_remote=False)
            del variables["KFM_OBJECT_ROOT"]
        stack.enter_context(environment(variables))
        pipeline = Pipeline.open(Settings.load())
        stack.callback(pipeline.close)
        Producer(Feed(cloud, registry), Disorder(seed=seed)).announce(events)
        counters = FaultCounters(state_folder(home, load_plan(plan)))
        workers = stack.enter_context(_workers(home, (*CREW, RESIDENT) if with_worker else CREW))
        watch = _Watch(pipeline, units=units, deadline=began + timeout_seconds)
        done = 0
        while not watch.finished():
            workers()
            if done < len(counters.injected()) * len(strikes) // max(kills, 1):
                strikes[done]()
                done += 1
            time.sleep(SAMPLE_SECONDS)
        deaths = Counter(entry["failpoint"] for entry in counters.injected())
        if sum(deaths.values()) != kills:
            raise CampaignError("not every planned kill happened", observed=sum(deaths.values()), expected=kills)
        return CampaignReport(
            database=pipeline.database.dialect,
            units=units,
            kills=sum(deaths.values()),
            kills_by_failpoint=dict(sorted(deaths.items())),
            strikes=dict(Counter(strike.__name__ for strike in strikes[:done])),
            samples=watch.samples,
            most_attempts=assert_whole(pipeline, home, dataset=DATASET, events=events),
            seconds=round(time.monotonic() - began, 1),
        )


@dataclass
class _Watch:
    """Checks the balance until all units are terminal, messages deleted and lineage published."""

    pipeline: Pipeline
    units: int
    deadline: float
    samples: int = 0

    def finished(self) -> bool:
        try:
            balance = self.pipeline.deliveries.conservation()
            depth = self.pipeline.queue.depth()
            # Lineage that a killed process has not published is published by the next process.
            staged = self.pipeline.lineage.undelivered().files.batches
        except Exception:
            # A strike has stopped the database.
            return self._in_time()
        self.samples += 1
        if (balance.residual_units, balance.residual_messages) != (0, 0):
            raise CampaignError("the balance does not hold", observed=balance)
        terminal = balance.units[Status.SUCCEEDED] + balance.units[Status.QUARANTINED]
        if terminal == self.units and not (staged or depth.visible or depth.in_flight or depth.delayed):
            return True
        return self._in_time()

    def _in_time(self) -> bool:
        if time.monotonic() > self.deadline:
            with self.pipeline.database.snapshot() as tx:
                counts = self.pipeline.ledger.counts(tx=tx)
            raise CampaignError("the campaign did not end in time", observed=counts)
        return False


def _variables(home: Path, database_url: str, plan: Path) -> dict[str, str]:
    return {
        "KFM_HOME": str(home.absolute()),
        "KFM_WAL_DSN": database_url,
        "KFM_FIRST_DAY": FIRST_DAY.isoformat(),
        "KFM_SCHEDULED_LISTINGS": "false",
        "KFM_OBJECT_ROOT": str((home / "objects").absolute()),
        "KFM_CHAOS_PLAN": str(plan.absolute()),
        "KFM_LEASE_SECONDS": str(LEASE_SECONDS),
        "KFM_RETRY_BACKOFF_SECONDS": "1",
        "KFM_TICK_BUDGET_SECONDS": "5",
        "KFM_RECEIVE_THREADS": "2",
        "KFM_MAX_UNITS_PER_RUN": str(UNITS_PER_RUN),
    }


def _write_plan(home: Path, *, kills: int, seed: int) -> Path:
    """Write a plan of kills: four fifths in the stages of runs, one fifth outside of stages."""
    outside = kills // 5
    rules = [
        {"name": "in-a-run", "failpoint": "*", "where": {"run": "?*"}, "at_most": kills - outside},
        {"name": "outside", "failpoint": "*", "where": {"run": ""}, "at_most": outside},
    ]
    plan = home / "plan.json"
    document = {
        "apiVersion": API_VERSION,
        "seed": seed,
        "rules": [{**rule, "fault": "kill", "probability": KILL_PROBABILITY} for rule in rules if rule["at_most"]],
    }
    plan.write_text(json.dumps(document), encoding="utf-8")
    return plan


def _objects(root: Path, units: int) -> Iterator[ObjectEvent]:
    """Write volumes of a few days below root; yield S3's event for each volume."""
    for number in range(DAYS):
        count = units // DAYS + (number < units % DAYS)
        for bucket, key, content in nexrad_level2_samples(FIRST_DAY + timedelta(days=number), count):
            path = root / bucket / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            etag = hashlib.md5(content, usedforsecurity=False).hexdigest()
            yield ObjectEvent(bucket=bucket, key=key, size=len(content), etag=etag, event_time=datetime.now(UTC))


@contextmanager
def _workers(home: Path, crew: Sequence[str]) -> Iterator[Callable[[], None]]:
    """Start the workers; yield a function that restarts dead workers, to be called repeatedly."""
    members: dict[int, subprocess.Popen[bytes]] = {}
    stop = home / "stop"
    with (home / "workers.log").open("ab") as log:

        def revive() -> None:
            for place, role in enumerate(crew):
                if place not in members or members[place].poll() is not None:
                    command = [sys.executable, "-m", "benchmarks.campaign_workers", role]
                    members[place] = subprocess.Popen(  # noqa: S603, our own module
                        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                    )

        try:
            yield revive
        finally:
            stop.touch()
            for member in members.values():
                try:
                    member.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    member.kill()
                    member.wait()


@click.command()
@click.option("--units", default=1000, show_default=True, type=click.IntRange(4, 100_000), help="Units to ingest.")
@click.option("--kills", default=20, show_default=True, type=click.IntRange(0, 10_000), help="Processes to kill.")
@click.option("--database", type=click.Choice(["sqlite", "postgresql"]), default="sqlite", show_default=True)
@click.option("--seed", default=1, show_default=True, type=int, help="Seed of kills and disorder.")
@click.option("--timeout", default=3600, show_default=True, type=click.IntRange(1), help="Maximum seconds.")
@click.option(
    "--odd-every", default=0, type=click.IntRange(0), help="Make every N-th answer of the store odd; 0: none."
)
@click.option("--worker", is_flag=True, help="Also run and kill a resident worker (kfm worker) on the same queue.")
def main(*, units: int, kills: int, database: str, seed: int, timeout: int, odd_every: int, worker: bool) -> None:
    """Kill processes during ingest, check that no unit is lost or doubled, print JSON.

    Example: python -m benchmarks.campaign --units 10000 --kills 200 --database postgresql
    """
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="kfm-campaign-", ignore_cleanup_errors=True))
        )
        folder.chmod(0o755)
        strikes: Sequence[Strike] = ()
        url = f"sqlite:///{folder / 'kfm.db'}"
        if database == "postgresql":
            server = stack.enter_context(RestartablePostgres(folder / "postgres"))
            url, strikes = server.url, list(islice(cycle(strikes_on(server)), STRIKES))
        report = run_campaign(
            folder / "home",
            database_url=url,
            units=units,
            kills=kills,
            seed=seed,
            timeout_seconds=timeout,
            strikes=strikes,
            with_worker=worker,
            odd_every=odd_every,
        )
    click.echo(json.dumps(asdict(report)))


if __name__ == "__main__":
    # SIGTERM ends the workers and the servers, too, as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main(standalone_mode=False)
    except KfmError as error:
        click.echo(f"campaign: {error}", err=True)
        sys.exit(error.exit_code)
