"""The world of one seed: time, services, feed, database, and a pipeline for each actor.

Belongs here: what exists, and who is alive. Does not belong here: what actors do (`actors.py`), what must hold
(`invariants.py`), how a seed is run (`history.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from kfm_dagster.catalog.store import Catalog
from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.lineage.store import Lineage
from kfm_dagster.recovery.dead_letters.drain import drain
from kfm_dagster.settings import Settings, SnsVerify
from kfm_dagster_tests.clocks import locked
from kfm_dagster_tests.simulation.feed import Feed
from kfm_dagster_tests.simulation.memory import SimulatedDatabase, Template
from kfm_dagster_tests.simulation.scheduling import Actor, Scheduler
from kfm_dagster_tests.simulation.services import (
    DEAD_LETTERS,
    PRIMARY,
    Broker,
    Buckets,
    SimulatedLanding,
    SimulatedLineageFiles,
    SimulatedPublisher,
    SimulatedQueue,
)

LEASE_SECONDS = 300
SKEW_SECONDS = 60.0
MAX_RUNS = 3
"""Runs that are started at the same time; re-executed ones come on top."""
PERMANENT = ["etag_mismatch"]
"""Errors that are tried once more only, so that both limits of a contract are met."""

SETTINGS = Settings(
    home=Path("/nowhere"),
    sqs_primary_queue=PRIMARY,
    sqs_dlq_queue=DEAD_LETTERS,
    lease_seconds=LEASE_SECONDS,
    retry_backoff_seconds=20.0,
    max_units_per_run=10,
    worker_id="simulated",
    sns_verify=SnsVerify.OFF,
)


def simulated_contracts() -> ContractRegistry:
    """Return two datasets with the attempts that a short history can use up."""
    builtin = ContractRegistry.load()
    return ContractRegistry.of(_impatient(builtin[dataset]) for dataset in ("goes-abi", "nexrad-l2"))


def _impatient(contract: DatasetContract) -> DatasetContract:
    permanent = contract.retry.permanent.model_copy(update={"codes": PERMANENT, "max_attempts": 2})
    return contract.model_copy(
        update={"retry": contract.retry.model_copy(update={"max_attempts": 3, "permanent": permanent})}
    )


@dataclass(kw_only=True, eq=False)
class World:
    """Everything that exists in one seed."""

    scheduler: Scheduler
    registry: ContractRegistry
    template: Template
    run: Callable[[World, Actor, str, Sequence[int]], None]
    """What a process of a run does in a partition, turn after turn."""
    outputs: dict[tuple[str, str, str], list[Envelope]] = field(default_factory=dict)
    """What runs have committed, by run, dataset and stage."""
    faulty: bool = True
    _partitions: dict[str, str] = field(default_factory=dict)
    _processes: Counter[str] = field(default_factory=Counter)
    _runs: int = 0

    def __post_init__(self) -> None:
        self.database: SimulatedDatabase = self.template.clone(self.scheduler)
        self.buckets = Buckets(self.scheduler)
        self.broker = Broker(self.scheduler)
        self.feed = Feed(self.scheduler, self.registry, self.broker, self.buckets)
        self.publisher = SimulatedPublisher()
        self.lineage_files = SimulatedLineageFiles(fails=lambda: self.faulty and self.chance(0.05))

    def pipeline(self, actor: Actor) -> Pipeline:
        """Return the pipeline of a process, with its own wrong clock."""
        pipeline = Pipeline(
            settings=SETTINGS,
            registry=self.registry,
            database=self.database,
            clock=lambda: self.scheduler.now + actor.skew,
            connect_queue=lambda _: self._queue(PRIMARY),
            connect_dead_letters=lambda _: self._queue(DEAD_LETTERS),
        )
        locked(pipeline)
        vars(pipeline)["landing"] = SimulatedLanding()
        vars(pipeline)["catalog"] = Catalog(self.database, self.publisher, self.registry)
        vars(pipeline)["lineage"] = Lineage(self.database, self.lineage_files, clock=pipeline.clock)
        return pipeline

    def _queue(self, name: str) -> Any:
        return SimulatedQueue(self.broker, name)

    def spawn(self, name: str, work: Callable[[World, Actor], None]) -> None:
        """Start a process that is started again whenever it dies."""

        def live(actor: Actor) -> None:
            try:
                work(self, actor)
            finally:
                if not self.scheduler.ending:
                    self.spawn(name, work)

        self.scheduler.spawn(name, live, skew=self._skew())

    def start_run(self, partition: str) -> None:
        """Start a run over a partition, unless enough are at work."""
        alive = {actor.run_id for actor in self.scheduler.actors if actor.run_id and not actor.dead}
        if len(alive) < MAX_RUNS:
            self._runs += 1
            self._execute(partition, f"00000000-0000-4000-8000-{self._runs:012d}", f"run-{self._runs}")

    def retry_run(self, run_id: str) -> None:
        """Execute a run again that was given up, now and then: its first process may only hang, and go on one day."""
        if self.faulty and self.chance(0.9):
            self.scheduler.happened["retried"] += 1
            self._execute(self._partitions[run_id], run_id, f"{run_id[-4:]}+")

    def _execute(self, partition: str, run_id: str, name: str) -> None:
        self._partitions[run_id] = partition
        earlier = self._processes[run_id]
        self._processes[run_id] += 1
        # Something of its own first, as early as a process before it may wake; then what those before it have left.
        turns = (earlier, *range(earlier))

        def live(actor: Actor) -> None:
            finished = False
            try:
                self.run(self, actor, partition, turns)
                finished = True
            finally:
                if not finished and not self.scheduler.ending and self.chance(0.4):
                    self.scheduler.happened["re-executed"] += 1
                    self._execute(partition, run_id, f"{name}+")

        self.scheduler.spawn(name, live, skew=self._skew(), run_id=run_id)

    def looks_dead(self, run_id: str) -> bool:
        """Say what a run monitor says of a run: dead when it is, and now and then when it only hangs."""
        working = [actor for actor in self.scheduler.actors if actor.run_id == run_id and not actor.dead]
        if not working:
            return True
        return all(actor.stalled for actor in working) and self.chance(0.3)

    def sleep(self, point: str, least: float, most: float) -> None:
        """Let the current actor do nothing for a while."""
        self.scheduler.pause(point, seconds=self.scheduler.rng.uniform(least, most))

    def chance(self, share: float) -> bool:
        """Draw."""
        return self.scheduler.rng.random() < share

    def choose(self, records: Iterable[NoddWalRecord], *statuses: Status) -> NoddWalRecord | None:
        """Draw one record of those statuses."""
        found = [record for record in records if record.status in statuses]
        return self.scheduler.rng.choice(found) if found else None

    def without_waiting(self, work: object) -> dict[str, Any]:
        """Give a drain a pause that is a point instead of real seconds."""
        return {"wait": lambda _: self.scheduler.pause("drain.wait")} if work is drain else {}

    def _skew(self) -> timedelta:
        return timedelta(seconds=self.scheduler.rng.uniform(-SKEW_SECONDS, SKEW_SECONDS))
