"""The actors: the two sensors, the runs, and the people, each as the deployment has them.

What they call is the product: `ingest.intake`, `ledger`, `governance`, `operators.stac_register` and `catalog`,
`operators.provenance_emit` and `lineage`, `Pipeline.acknowledge`, `recovery`. Simulated is only what a
run does between the transactions of its stages: reading objects. Does not belong here: faults (`scheduling.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from kfm_dagster.contracts.envelope import (
    CheckStatus,
    Envelope,
    Integrity,
    Lane,
    RawReference,
    WalId,
)
from kfm_dagster.contracts.issues import IntegrityIssue, Issue, Severity
from kfm_dagster.errors import KfmError
from kfm_dagster.governance.log import Decision, GovernanceAction
from kfm_dagster.ingest import intake
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.operators.provenance_emit import provenance_emit
from kfm_dagster.operators.stac_register import stac_register_batch
from kfm_dagster.recovery.dead_letters.batches import Bounds
from kfm_dagster.recovery.dead_letters.drain import drain
from kfm_dagster.recovery.dead_letters.moves import redrive
from kfm_dagster.storage.database import Transaction
from kfm_dagster_tests.simulation.scheduling import Actor
from kfm_dagster_tests.simulation.world import World

PERSON = Decision(actor="person", reason="looked at it", change_ref="CHG-1")
UNITS_PER_RUN = 3


def sensor(world: World, actor: Actor) -> None:
    """Take messages in, tick after tick."""
    pipeline = world.pipeline(actor)
    while True:
        intake.take_in(pipeline)
        world.sleep("messages.tick", 10, 120)


def recovery(world: World, actor: Actor) -> None:
    """Recover, retry, acknowledge, and start runs over what is pending, tick after tick."""
    pipeline = world.pipeline(actor)
    while True:
        actor.named_dead = frozenset(filter(world.looks_dead, pipeline.ledger.in_progress_runs()))
        pipeline.ledger.release_lost(run_ids=actor.named_dead)
        for run_id in sorted(actor.named_dead):
            world.retry_run(run_id)
        actor.named_dead = frozenset()
        pipeline.ledger.retry_due(now=pipeline.clock(), limit=100)
        pipeline.acknowledge()
        pipeline.lineage.publish_staged()
        for partition in sorted({entry.partition for entry in pipeline.ledger.pending_by_partition()}):
            world.start_run(partition)
        world.sleep("ledger.tick", 20, 200)


def run(world: World, actor: Actor, partition: str, turns: Sequence[int]) -> None:
    """Take what is pending of each dataset through the chain."""
    assert actor.run_id is not None
    known = frozenset(world.outputs)
    # A run that is executed again may claim again: an envelope of its first claim has its run id, too, and only the
    # attempt tells them apart.
    for turn in turns:
        for contract in world.registry:
            Run(world=world, actor=actor, partition=partition, run_id=actor.run_id, turn=turn, known=known).chain(
                contract.id
            )


@dataclass(kw_only=True)
class Run:
    """One process that works for a run: the first one, or one that executes it again."""

    world: World
    actor: Actor
    partition: str
    run_id: str
    turn: int
    known: frozenset[tuple[str, str, str]]
    """Outputs that stood when this process began: of what its successor commits a process that hangs knows nothing."""

    def chain(self, dataset: str) -> None:
        """Work on one batch, from the claim to the acknowledgement."""
        pipeline = self.world.pipeline(self.actor)
        ledger = pipeline.ledger
        claim = partial(
            ledger.claim, dataset=dataset, partition=self.partition, run_id=self.run_id, limit=UNITS_PER_RUN
        )
        batch = self._stage(pipeline, dataset, "message_parse", [], apply=lambda tx, _: claim(tx=tx))
        self.actor.attempts |= {unit.wal_id: unit.attempt for unit in batch}
        if not batch:
            return
        batch = self._stage(pipeline, dataset, "read", [self._read(unit) for unit in batch])
        if self.world.chance(0.5):
            ledger.leases.renew(self.run_id, {unit.wal_id: unit.attempt for unit in batch})
        registered = stac_register_batch(
            batch,
            contract=pipeline.registry[dataset],
            grammar=pipeline.registry.grammars[dataset],
            catalog=pipeline.catalog,
            fence=ledger.fence(self.run_id),
            run_state={"dataset_id": f"{dataset}.stac_register", "run_id": self.run_id},
        )
        batch = self._stage(pipeline, dataset, "stac_register", registered)
        told = provenance_emit(
            batch,
            contract=pipeline.registry[dataset],
            lineage=pipeline.lineage,
            fence=ledger.fence(self.run_id),
            run_id=self.run_id,
            occurred_at=pipeline.clock(),
        )
        batch = self._stage(pipeline, dataset, "provenance_emit", told)
        failed: set[WalId] = set()

        def settle(tx: Transaction, units: list[Envelope]) -> list[Envelope]:
            failed.update(ledger.settle(units, run_id=self.run_id, tx=tx).failed)
            return units

        self._stage(pipeline, dataset, "settle", batch, apply=settle)
        pipeline.acknowledge(retrying=failed)

    def _stage(
        self,
        pipeline: Pipeline,
        dataset: str,
        name: str,
        batch: list[Envelope],
        *,
        apply: Callable[[Transaction, list[Envelope]], list[Envelope]] = lambda _, batch: batch,
    ) -> list[Envelope]:
        """Commit a stage with its output, or recall the output of the execution before."""
        key = (self.run_id, dataset, f"{name} {self.turn}")
        if key in self.known:
            return self.world.outputs[key]
        with pipeline.database.transaction() as tx:
            applied = apply(tx, batch)
            self.actor.after_commit.append(lambda: self.world.outputs.__setitem__(key, applied))
        return applied

    def _read(self, unit: Envelope) -> Envelope:
        """Do what integrity-check and metadata-extract do: look at the object, and read its headers."""
        etag = self.world.buckets.etag(unit.object_uri)
        code = None
        if etag is None:
            code = IntegrityIssue.MISSING_OBJECT
        elif etag != unit.object_version:
            code = IntegrityIssue.ETAG_MISMATCH
        elif self.world.faulty and self.world.chance(0.05):
            code = IntegrityIssue.STORAGE_UNAVAILABLE
        if code is not None:
            issue = Issue(code=code, severity=Severity.FAILED, message="simulated")
            return unit.evolve(integrity=Integrity(status=CheckStatus.FAILED, issues=(issue,)))
        return unit.evolve(
            integrity=Integrity(status=CheckStatus.OK, actual_size_bytes=unit.object_size, actual_etag=etag),
            metadata=self.world.feed.versions[unit.wal_id].sample.metadata,
        )


def person(world: World, actor: Actor) -> None:
    """Decide something now and then; in the end only empty the dead letters, and switch everything on."""
    pipeline = world.pipeline(actor)
    while True:
        world.sleep("person", 10, 300)
        act = world.scheduler.rng.choice(DECISIONS) if world.faulty else _finish
        try:
            act(world, pipeline)
        except KfmError as error:
            # It was too late, or is on already; a person reads that and goes home.
            world.scheduler.note(f"person was refused: {type(error).__name__}")


def _quarantine(world: World, pipeline: Pipeline) -> None:
    if chosen := world.choose(pipeline.ledger.find(limit=50), Status.PENDING, Status.FAILED):
        pipeline.ledger.quarantine([chosen.wal_id], reason_code="person", decision=PERSON)
        world.scheduler.happened["quarantined by a person"] += 1


def _override(from_status: Status, action: GovernanceAction, world: World, pipeline: Pipeline) -> None:
    if chosen := world.choose(pipeline.ledger.find(limit=50), from_status):
        moved = pipeline.ledger.override(
            {WalId(chosen.wal_id): chosen.version}, from_status=from_status, action=action, decision=PERSON
        )
        world.scheduler.happened[action.value] += len(moved)


def _requeue(world: World, pipeline: Pipeline) -> None:
    if chosen := world.choose(pipeline.ledger.find(limit=50), Status.FAILED):
        pipeline.ledger.requeue([chosen.wal_id], reason="incident", actor="person")


def _switch(world: World, pipeline: Pipeline) -> None:
    on = sorted(pipeline.ledger.switches.engaged())
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
    """Enter what the buckets hold, as a listing tells it."""
    held = {stored.etag for stored in world.buckets.objects.values()}
    found = [version.unit for version in world.feed.versions.values() if version.unit.object_version in held]
    listed = [replace(unit, sequencer=None, raw=RawReference()) for unit in found]
    created = pipeline.ledger.ensure(listed, lane=Lane.BULK).created
    world.scheduler.happened["found by a listing"] += len(created)


def _finish(world: World, pipeline: Pipeline) -> None:
    for dataset in sorted(pipeline.ledger.switches.engaged()):
        pipeline.ledger.switches.release(dataset, PERSON)
    _drain(world, pipeline)


DECISIONS = (
    _quarantine,
    partial(_override, Status.QUARANTINED, GovernanceAction.RELEASE),
    partial(_override, Status.SUCCEEDED, GovernanceAction.REPEAT),
    partial(_override, Status.SUCCEEDED, GovernanceAction.REPEAT),
    partial(_override, Status.SUCCEEDED, GovernanceAction.REPAIR_AND_REPLACE),
    _requeue,
    _switch,
    _switch,
    _drain,
    _backfill,
)
