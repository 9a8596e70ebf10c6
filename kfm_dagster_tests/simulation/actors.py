"""The actors of a deployment: the two sensors, the runs, and the people.

They call the product: `ingest.intake`, `ingest.maintenance`, the chain of `ingest.nodes` under the run
contract, `ingest.chain`, `governance`, `Pipeline.acknowledge`, `recovery`. What Dagster does is simulated
here: starting runs, passing a batch from step to step, retrying a step. Does not belong here: faults
(`faults.py`, `scheduling.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from kfm_dagster.contracts.envelope import Lane, RawReference, WalId
from kfm_dagster.errors import KfmError
from kfm_dagster.governance.log import GovernanceAction
from kfm_dagster.ingest import intake
from kfm_dagster.ingest.chain import retry_in, roll_back_or_leave
from kfm_dagster.ingest.evidence import EvidenceCollector
from kfm_dagster.ingest.maintenance import release_dead_runs
from kfm_dagster.ingest.node import ChainNode
from kfm_dagster.ingest.nodes import MessageParse, Source, chain
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.process_state import ProcessState
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.recovery.dead_letters.treatments import drain, redrive
from kfm_dagster.recovery.dead_letters.work import Bounds
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster_tests.factories import PERSON
from kfm_dagster_tests.simulation.scheduling import Actor
from kfm_dagster_tests.simulation.world import UNITS_PER_RUN, Order, World
from kfm_dagster_tests.transactions import own_tx


def sensor(world: World, actor: Actor) -> None:
    """Take in messages and start runs over the announced objects, once per tick."""
    pipeline = world.pipeline(actor)
    while True:
        with world.refusals("a tick"):
            work = intake.take_in(pipeline, ProcessState()).work
            for partition in sorted({partition for _, partition in work}):
                datasets = [dataset for dataset, day in sorted(work) if day == partition]
                world.start_run(Order(partition=partition, source=Source.LEDGER, datasets=datasets))
        world.sleep("messages.tick", 10, 120)


def recovery(world: World, actor: Actor) -> None:
    """Recover, retry, acknowledge, and start runs over pending units, once per tick."""
    pipeline = world.pipeline(actor)
    while True:
        with world.refusals("a tick"):
            _recover(world, pipeline, actor)
        world.sleep("ledger.tick", 20, 200)


def _recover(world: World, pipeline: Pipeline, actor: Actor) -> None:
    looks_dead: dict[str, bool] = {}

    def dead(run_ids: Iterable[str]) -> list[str]:
        dead_runs = [run_id for run_id in run_ids if looks_dead.setdefault(run_id, world.looks_dead(run_id))]
        actor.named_dead |= frozenset(dead_runs)
        return dead_runs

    release_dead_runs(pipeline, dead=dead, warn=lambda _: None)
    for run_id in sorted(actor.named_dead):
        world.retry_run(run_id)
    actor.named_dead = frozenset()
    own_tx(pipeline.ledger).retry_due(now=pipeline.clock(), limit=100)
    pipeline.acknowledger.acknowledge()
    EvidenceCollector(pipeline).collect()
    pipeline.lineage.flush()
    pipeline.following.catch_up(pipeline.followers)
    pending: dict[str, set[str]] = {}
    for entry in pipeline.ledger.pending_by_partition():
        pending.setdefault(entry.partition, set()).add(entry.dataset)
    for partition in sorted(pending):
        world.start_run(Order(partition=partition, source=Source.LEDGER, datasets=sorted(pending[partition])))


def run(world: World, actor: Actor, order: Order) -> None:
    """Take a run's ordered units through the chain, one dataset after the other."""
    assert actor.run_id is not None
    pipeline = world.pipeline(actor)
    for dataset in order.datasets:
        Execution(
            world=world, actor=actor, pipeline=pipeline, order=order, dataset=dataset, run_id=actor.run_id
        ).of_chain()


@dataclass(kw_only=True)
class Execution:
    """A run's work on one dataset in one process, as Dagster executes the dataset's steps."""

    world: World
    actor: Actor
    pipeline: Pipeline
    order: Order
    dataset: str
    run_id: str

    def of_chain(self) -> None:
        """Execute each step of the chain until one fails permanently."""
        batch: StageBatch | None = None
        for kind in chain():
            batch = self._step(kind, batch)
            if batch is None:
                return

    def _step(self, kind: type[ChainNode], upstream: StageBatch | None) -> StageBatch | None:
        """Execute a step with the pipeline card's retries; return None if it failed permanently."""
        tries = 0
        while True:
            tries += 1
            node = self._node(kind)
            try:
                received = self._received(upstream)
            except KfmError as error:  # the store is unavailable or the run was rolled back: no step to retry
                self._failed(node, error)
                return None
            try:
                stage = self.pipeline.stages.run(node, run_id=self.run_id, upstream=received)
                batch = self.pipeline.stages.commit(stage)
            except Exception as error:
                self.world.surprised_by(error)
                wait = retry_in(node, error, tries=tries)
                if wait is None:
                    self._failed(node, error)
                    self.world.scheduler.happened["rolled back"] += roll_back_or_leave(node, error) is not None
                    return None
                self.world.scheduler.happened["step tried again"] += 1
                self.world.scheduler.pause("step.retry", seconds=wait)
            else:
                self._believe(batch)
                return batch

    def _node(self, kind: type[ChainNode]) -> ChainNode:
        parts = {
            "pipeline": self.pipeline,
            "dataset": self.dataset,
            "partition": self.order.partition,
            "run_id": self.run_id,
        }
        if kind is not MessageParse:
            return kind(**parts)
        return MessageParse(**parts, source=self.order.source, limit=UNITS_PER_RUN)

    def _received(self, batch: StageBatch | None) -> StageBatch | None:
        """Pass on a batch in memory, or load it as another process of the run would. Raises KfmError."""
        if batch is None or self.world.chance(0.7):
            return batch
        loaded = self.pipeline.stages.port.load_output(batch.state.dataset_id, self.run_id)
        if loaded is None:
            raise KfmError("there is no such output any more")
        self._believe(loaded)
        return loaded

    def _believe(self, batch: StageBatch) -> None:
        """Record that the process believes that it holds a batch's units, unless it reuses an earlier output."""
        if batch.skipped is not None:
            self.world.scheduler.happened[batch.skipped.value] += 1
        if not batch.reused:
            self.actor.attempts |= {unit.wal_id: unit.attempt for unit in batch.envelopes}

    def _failed(self, node: ChainNode, error: Exception) -> None:
        self.world.scheduler.happened["step failed"] += 1
        self.world.scheduler.note(f"{node.kind} failed: {type(error).__name__}")


def person(world: World, actor: Actor) -> None:
    """Make decisions from time to time; once faults have ended, repeat one unit, then finish."""
    pipeline = world.pipeline(actor)
    rng = world.scheduler.rng
    habits = rng.sample(DECISIONS, k=rng.randint(1, 5))
    # Only succeeded units can be repeated, and most units succeed after the faults have ended.
    last = [rng.choice(REPETITIONS)]
    while True:
        world.sleep("person", 10, 200)
        act = rng.choice(habits) if world.faulty else last.pop() if last else _finish
        with world.refusals("a person"):
            act(world, pipeline)


def _quarantine(world: World, pipeline: Pipeline) -> None:
    if chosen := world.choose(own_tx(pipeline.ledger).find(limit=50), Status.PENDING, Status.FAILED):
        own_tx(pipeline.ledger).quarantine([chosen.wal_id], reason_code="person", decision=PERSON)
        world.scheduler.happened["quarantined by a person"] += 1


def _override(from_status: Status, action: GovernanceAction, world: World, pipeline: Pipeline) -> None:
    if chosen := world.choose(own_tx(pipeline.ledger).find(limit=50), from_status):
        moved = own_tx(pipeline.ledger).override(
            {WalId(chosen.wal_id): chosen.version}, from_status=from_status, action=action, decision=PERSON
        )
        world.scheduler.happened[action.value] += len(moved)


def _requeue(world: World, pipeline: Pipeline) -> None:
    if chosen := world.choose(own_tx(pipeline.ledger).find(limit=50), Status.FAILED):
        own_tx(pipeline.ledger).requeue([chosen.wal_id], reason="incident", actor="person")


def _switch(world: World, pipeline: Pipeline) -> None:
    on = sorted(own_tx(pipeline.ledger.switches).engaged())
    if on:
        pipeline.ledger.switches.release(on[0], PERSON)
        world.scheduler.happened["kill switch off"] += 1
    else:
        dataset = world.scheduler.rng.choice(["goes-abi", "nexrad-l2", "*"])
        pipeline.ledger.switches.engage(dataset, PERSON)
        world.scheduler.happened["kill switch on"] += 1


def _drain(world: World, pipeline: Pipeline) -> None:
    work = drain if world.chance(0.7) else redrive
    report = work(pipeline, decision=PERSON, bounds=Bounds(batch_size=10, max_batches=2), **world.without_waiting(work))
    world.scheduler.happened["dead letters worked on"] += len(report.messages)


def _backfill(world: World, pipeline: Pipeline) -> None:
    """Record the current objects of the buckets, with the values that a listing returns."""
    held = {stored.etag for stored in world.buckets.objects.values()}
    units = [version.unit for version in world.feed.versions.values() if version.unit.object_version in held]
    listed = [replace(unit, sequencer=None, raw=RawReference()) for unit in units]
    created = own_tx(pipeline.ledger).ensure(listed, lane=Lane.BULK).created
    world.scheduler.happened["found by a listing"] += len(created)


def _list_a_day(world: World, pipeline: Pipeline) -> None:
    """Start a run by hand; it lists the buckets."""
    days = sorted({unit.unit.partition for unit in world.feed.versions.values()})
    if days:
        datasets = [contract.id for contract in pipeline.registry]
        order = Order(partition=world.scheduler.rng.choice(days), source=Source.LISTING, datasets=datasets)
        world.start_run(order)


def _finish(world: World, pipeline: Pipeline) -> None:
    """Switch datasets on, empty the dead letters, release quarantined units of sound objects."""
    for dataset in sorted(own_tx(pipeline.ledger.switches).engaged()):
        pipeline.ledger.switches.release(dataset, PERSON)
    _drain(world, pipeline)
    for record in own_tx(pipeline.ledger).find(limit=50):
        version = world.feed.versions.get(WalId(record.wal_id))
        if record.status is Status.QUARANTINED and version and version.sound and world.feed.is_readable(version):
            own_tx(pipeline.ledger).override(
                {WalId(record.wal_id): record.version},
                from_status=Status.QUARANTINED,
                action=GovernanceAction.RELEASE,
                decision=PERSON,
            )


REPETITIONS = (
    partial(_override, Status.SUCCEEDED, GovernanceAction.REPEAT),
    partial(_override, Status.SUCCEEDED, GovernanceAction.REPEAT),
    partial(_override, Status.SUCCEEDED, GovernanceAction.REPAIR_AND_REPLACE),
)
DECISIONS = (
    _quarantine,
    partial(_override, Status.QUARANTINED, GovernanceAction.RELEASE),
    *REPETITIONS,
    _requeue,
    _switch,
    _switch,
    _drain,
    _backfill,
    _list_a_day,
)
