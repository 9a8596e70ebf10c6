"""The world of one seed: time, services, feed, database, and a pipeline for each actor.

Belongs here: the world's state and its living actors. Does not belong here: actions (`actors.py`), invariants
(`invariants.py`), running a seed (`history.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from obstore.exceptions import BaseError
from typing_extensions import override

from kfm_dagster.catalog.following import FollowerRunner
from kfm_dagster.catalog.store import Catalog
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.errors import IllegalTransitionError, KfmError
from kfm_dagster.failpoints import Argument, Result
from kfm_dagster.idempotent_node.compute_hash import CodeFingerprint
from kfm_dagster.ingest.nodes import Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.threads import Threads
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.lineage.store import Lineage
from kfm_dagster.recovery.dead_letters.treatments import drain
from kfm_dagster.settings import Settings
from kfm_dagster.stages.card import Card
from kfm_dagster.stages.failure import StageFailedError
from kfm_dagster_tests.clocks import locked
from kfm_dagster_tests.factories import with_section
from kfm_dagster_tests.simulation.faults import Fault
from kfm_dagster_tests.simulation.feed import Feed
from kfm_dagster_tests.simulation.memory import SimulatedDatabase, Template
from kfm_dagster_tests.simulation.objects import Buckets, DocumentReader, SimulatedObjects
from kfm_dagster_tests.simulation.scheduling import Actor, Scheduler
from kfm_dagster_tests.simulation.services import (
    DEAD_LETTERS,
    PRIMARY,
    Broker,
    Mirror,
    SimulatedLineageFiles,
    SimulatedPublisher,
    SimulatedQueue,
    SimulatedStore,
)

UNITS_PER_RUN = 3
LEASE_SECONDS = 300
SKEW_SECONDS = 60.0
MAX_RUNS = 3
"""The maximum number of runs at the same time, without re-executed ones."""
PERMANENT = ["etag_mismatch"]
"""Errors that allow a unit two attempts; other errors allow three, so that histories reach both limits."""

SETTINGS = Settings(
    home=Path("/nowhere"),
    sqs_primary_queue=PRIMARY,
    sqs_dlq_queue=DEAD_LETTERS,
    lease_seconds=LEASE_SECONDS,
    retry_backoff_seconds=20.0,
    max_units_per_run=10,
    worker_id="simulated",
    # The feed does not sign messages.
    sns_verify="off",
)
CODE = CodeFingerprint(code_sha="simulated", lockfile_hash="0" * 64)
"""A fixed fingerprint of the code, the same in every process: each change of the code would change the real one, and so
the hashes in every history."""


def simulated_contracts() -> ContractRegistry:
    """Return two datasets with so few attempts that a short history uses them up."""
    builtin = ContractRegistry.load()
    return ContractRegistry.of(_impatient(builtin[dataset]) for dataset in ("goes-abi", "nexrad-l2"))


def _impatient(contract: DatasetContract) -> DatasetContract:
    permanent = contract.retry.permanent.model_copy(update={"codes": PERMANENT, "max_attempts": 2})
    return with_section(contract, "retry", max_attempts=3, permanent=permanent)


class SurpriseError(Exception):
    """The product met an unexpected error."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """The order of a run: a day, the origin of its units, and its datasets."""

    partition: str
    source: Source
    datasets: Sequence[str]


@dataclass
class SimulatedPipeline(Pipeline):
    """The pipeline of a process in a world, without real threads."""

    world: World = field(kw_only=True)
    actor: Actor = field(kw_only=True)

    def __post_init__(self) -> None:
        world = self.world
        replaced = {
            "store": world.store,
            "objects": SimulatedObjects(world.buckets, silent=lambda: world.scheduler.happens(Fault.OBJECT_SILENT)),
            "readers": {contract.metadata_extract.reader: DocumentReader() for contract in self.registry},
            "catalog": Catalog(self.database, world.publisher, self.registry),
            "following": FollowerRunner(self.database, self.registry, world.publisher, clock=self.clock),
            "followers": (world.mirror,),
            "lineage": Lineage(self.database, world.lineage_files, clock=self.clock),
            "code": CODE,
            "threads": SimulatedThreads(most=1, world=world, actor=self.actor),
        }
        assert replaced.keys() <= vars(Pipeline).keys(), "a replaced part is not a part of the pipeline any more"
        vars(self).update(replaced)
        locked(self)


@dataclass(frozen=True, kw_only=True)
class SimulatedThreads(Threads):
    """The threads of a process, run by the world's scheduler."""

    world: World
    actor: Actor

    @override
    def concurrently(self, work: Callable[[Argument], Result], batch: Iterable[Argument]) -> list[Result]:
        return [work(task) for task in batch]

    @override
    @contextmanager
    def repeating(self, tick: Callable[[], None], *, seconds: float, name: str) -> Iterator[None]:
        scheduler = self.world.scheduler

        def keep(_thread: Actor) -> None:
            while True:
                tick()
                scheduler.pause("heartbeat", seconds=seconds)

        actor = self.actor
        thread = scheduler.spawn(f"{actor.name}'", keep, skew=actor.skew, run_id=actor.run_id, of=actor)
        thread.wake = scheduler.now + timedelta(seconds=seconds)
        try:
            yield
        finally:
            actor.joined(thread, scheduler.now)


@dataclass(kw_only=True, eq=False)
class World:
    """The state of one seed."""

    scheduler: Scheduler
    registry: ContractRegistry
    card: Card
    template: Template
    run: Callable[[World, Actor, Order], None]
    """The work of a run's process."""
    faulty: bool = True
    _orders: dict[str, Order] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.database: SimulatedDatabase = self.template.clone(self.scheduler)
        self.buckets = Buckets(self.scheduler)
        self.broker = Broker(self.scheduler)
        self.feed = Feed(self.scheduler, self.registry, self.broker, self.buckets)
        self.store = SimulatedStore(self.scheduler.happens)
        self.publisher = SimulatedPublisher(self.scheduler.happens)
        self.mirror = Mirror(self.scheduler)
        self.lineage_files = SimulatedLineageFiles(self.scheduler.happens)

    def pipeline(self, actor: Actor) -> Pipeline:
        """Return the pipeline of a process, with the process's clock error."""

        def clock() -> datetime:
            return self.scheduler.now + actor.skew

        return SimulatedPipeline(
            settings=SETTINGS,
            registry=self.registry,
            database=self.database,
            card=self.card,
            clock=clock,
            connect_queue=lambda *_: self._queue(PRIMARY),
            connect_dead_letters=lambda _: self._queue(DEAD_LETTERS),
            world=self,
            actor=actor,
        )

    def _queue(self, name: str) -> Any:
        return SimulatedQueue(self.broker, name)

    def spawn(self, name: str, work: Callable[[World, Actor], None]) -> None:
        """Start a process that restarts whenever it dies."""

        def live(actor: Actor) -> None:
            try:
                work(self, actor)
            finally:
                if not self.scheduler.ending:
                    self.spawn(name, work)

        self.scheduler.spawn(name, live, skew=self._skew())

    def start_run(self, order: Order) -> None:
        """Start a run, unless enough are active; sometimes two processes execute it."""
        alive = {actor.run_id for actor in self.scheduler.actors if actor.run_id and not actor.dead}
        if len(alive) < MAX_RUNS:
            number = len(self._orders) + 1
            run_id = f"00000000-0000-4000-8000-{number:012d}"
            self._orders[run_id] = order
            self._execute(run_id, f"run-{number}")
            if self.scheduler.happens(Fault.TWIN):
                self.scheduler.happened["started twice"] += 1
                self._execute(run_id, f"run-{number}*")

    def retry_run(self, run_id: str) -> None:
        """Execute a run again that looked dead. Perhaps its first process only hangs, and resumes later."""
        if self.scheduler.happens(Fault.HASTE):
            self.scheduler.happened["retried"] += 1
            self._execute(run_id, f"{run_id[-4:]}+")

    def _execute(self, run_id: str, name: str) -> None:
        def live(actor: Actor) -> None:
            finished = False
            try:
                self.run(self, actor, self._orders[run_id])
                finished = True
            finally:
                if not finished and not self.scheduler.ending and self.scheduler.happens(Fault.RE_EXECUTION):
                    self.scheduler.happened["re-executed"] += 1
                    self._execute(run_id, f"{name}+")

        self.scheduler.spawn(name, live, skew=self._skew(), run_id=run_id)

    def looks_dead(self, run_id: str) -> bool:
        """Return whether a run monitor reports a run as dead: if it is, or by chance if it hangs."""
        processes = (actor for actor in self.scheduler.actors if actor.of is None and not actor.dead)
        working = [actor for actor in processes if actor.run_id == run_id]
        if not working:
            return True
        return all(actor.stalled for actor in working) and self.chance(0.3)

    @contextmanager
    def refusals(self, actor: str) -> Iterator[None]:
        """Accept that the product refuses an action: a sensor repeats its tick later, a person does not try again."""
        try:
            yield
        except KfmError as error:
            self.scheduler.note(f"{actor} was refused: {type(error).__name__}")

    def surprised_by(self, error: Exception) -> None:
        """Raise SurpriseError for a run's error that is neither a service's nor the product's."""
        cause = error.cause if isinstance(error, StageFailedError) else error
        # The database refuses a transition only if the ledger failed to check it.
        if isinstance(cause, IllegalTransitionError) or not isinstance(cause, (KfmError, BaseError, OSError)):
            raise SurpriseError(f"{type(cause).__name__}: {cause}") from error

    def sleep(self, point: str, least: float, most: float) -> None:
        """Pause the current actor for a drawn time."""
        self.scheduler.pause(point, seconds=self.scheduler.rng.uniform(least, most))

    def chance(self, share: float) -> bool:
        """Draw true with this probability."""
        return self.scheduler.rng.random() < share

    def choose(self, records: Iterable[NoddWalRecord], *statuses: Status) -> NoddWalRecord | None:
        """Draw a record with one of these statuses."""
        candidates = [record for record in records if record.status in statuses]
        return self.scheduler.rng.choice(candidates) if candidates else None

    def without_waiting(self, work: object) -> dict[str, Any]:
        """Return the options by which a drain waits at a point of the scheduler, not in real time."""
        return {"wait": lambda _: self.scheduler.pause("drain.wait")} if work is drain else {}

    def _skew(self) -> timedelta:
        return timedelta(seconds=self.scheduler.rng.uniform(-SKEW_SECONDS, SKEW_SECONDS))
