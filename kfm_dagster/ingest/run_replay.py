"""Replay of a run by `replay_plan.yaml` (pipeline card, chapter 7, section VII; PCS-08).

The first node of the replaying run repeats the stages of the original run, each from its saved input, and compares the
results; the comparison only reads objects and checkpoints. If results differ, the node fails before any change, and the
original's output stays current. If they are equal, a transaction requeues the units by a governed override and claims
them. Then the original's Items are withdrawn, if the plan says so, and the chain runs as usual, through every gate.
Does not belong here: replays of selected units (`recovery/replay/engine.py`).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from kfm_dagster.contracts.envelope import Envelope, WalId
from kfm_dagster.errors import ConfigurationError, ExitCode
from kfm_dagster.governance.log import Decision, GovernanceAction
from kfm_dagster.governance.review import Command
from kfm_dagster.idempotent_node.compute_hash import ManifestEntry
from kfm_dagster.ingest.discovery import claimed_of
from kfm_dagster.ingest.node import ChainNode, Results
from kfm_dagster.ingest.nodes import MessageParse, Settle, StacRegister, chain
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.plural import counted
from kfm_dagster.redaction import redacted_error
from kfm_dagster.stages.audit import AuditEvent, AuditKind
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster.stages.card import ErrorClass, Replay, StageState
from kfm_dagster.stages.failure import StageRefusedError
from kfm_dagster.stages.run_contract import StageRunner
from kfm_dagster.stages.store import StageAttempt
from kfm_dagster.storage.database import Transaction


class RunReplayRefusedError(ConfigurationError):
    """A run cannot be replayed."""

    exit_code = ExitCode.REFUSED


@dataclass(frozen=True, kw_only=True, slots=True)
class StageComparison:
    """A repeated stage of a run. Hashes are hex SHA-256 over keys and results, in key order."""

    stage: str
    units: int
    original_sha256: str
    replayed_sha256: str
    keys_differing: tuple[WalId, ...]
    """Units with a result in only one of original and replay, sorted."""
    results_differing: tuple[WalId, ...]
    """Units with two results that differ, sorted."""

    def diverges(self, plan: Replay) -> bool:
        """Return whether keys or results differ although the plan requires them to be equal."""
        return bool((plan.verify.primary_keys and self.keys_differing) or (plan.verify.hash and self.results_differing))

    def as_json(self) -> dict[str, Any]:
        """Return the published form."""
        return {
            "stage": self.stage,
            "units": self.units,
            "original_sha256": self.original_sha256,
            "replayed_sha256": self.replayed_sha256,
            "keys_differing": len(self.keys_differing),
            "results_differing": len(self.results_differing),
            "first": min((*self.keys_differing, *self.results_differing), default=None),
        }


def compare_run(pipeline: Pipeline, *, dataset: str, run_id: str) -> Iterator[StageComparison]:
    """Yield comparisons of a run's replayable stages, in reverse topological order.

    Compares the units that succeeded in the run. Raises RunReplayRefusedError if the plan or the run does not allow a
    replay, and StoreSilentError if an object's store does not answer.
    """
    plan = pipeline.card.replay_plan.replay
    outputs = {node: _output(pipeline.stages, plan, f"{dataset}.{node.operator}", run_id) for node in chain()}
    # A failed unit has no comparable result, because another attempt may have another outcome.
    succeeded = {unit.wal_id for unit in outputs[Settle].envelopes if unit.failure is None}
    original = {
        node: [unit for unit in output.envelopes if unit.wal_id in succeeded] for node, output in outputs.items()
    }
    for kind in reversed(chain()):
        if kind.replayable and kind.follows is not None:
            received = original[kind.follows]
            partition = next((unit.partition for unit in received), "")
            node = kind(pipeline=pipeline, dataset=dataset, partition=partition, run_id=run_id, received=received)
            yield _compared(node.kind, node.results(original[kind]), node.rerun())


def _output(stages: StageRunner, plan: Replay, stage: str, run_id: str) -> StageBatch:
    """Return the saved output of a run's stage. Raises RunReplayRefusedError."""
    if not plan.enabled:
        raise RunReplayRefusedError(
            observed="replay.enabled false", next_step="edit replay_plan.yaml (KFM_CONFIGS_DIR), or use kfm replay run"
        )
    with stages.database.snapshot() as tx:
        attempt = stages.lifecycle.store.newest(run_id, stage, tx=tx)
    saved = attempt is not None and attempt.state is StageState.SUCCEEDED
    if plan.require_checkpoint and not (saved and attempt is not None and attempt.checkpoint_uri is not None):
        raise RunReplayRefusedError(
            observed=f"{stage} has no checkpoint in run {run_id}",
            expected="a run with a checkpoint of every stage (state_machine.yaml, checkpoints)",
            next_step="kfm runs show lists other runs; kfm replay run ingests units again, without checkpoints",
        )
    output = stages.port.load_output(stage, run_id)
    if output is None:
        raise RunReplayRefusedError(
            observed=f"{stage} has no output in run {run_id}, or it was revoked",
            expected="a run with current outputs",
            next_step="see kfm runs show",
        )
    return output


def _compared(stage: str, original: Results, repeated: Results) -> StageComparison:
    common = original.keys() & repeated.keys()
    return StageComparison(
        stage=stage,
        units=len(original),
        original_sha256=_sha256(original),
        replayed_sha256=_sha256(repeated),
        keys_differing=tuple(sorted(original.keys() ^ repeated.keys())),
        results_differing=tuple(sorted(wal_id for wal_id in common if original[wal_id] != repeated[wal_id])),
    )


def _sha256(results: Results) -> str:
    digest = hashlib.sha256()
    for wal_id in sorted(results):
        digest.update(f"{wal_id} {hashlib.sha256(results[wal_id]).hexdigest()}\n".encode())
    return digest.hexdigest()


_LOG = logging.getLogger(__name__)


class ReplayDivergedError(StageRefusedError):
    """A repeated stage gave another result than the original."""

    error_class = ErrorClass.E_GATE

    def __init__(self, *, original: str, comparisons: Sequence[StageComparison], diverging: StageComparison) -> None:
        self._original = original
        self._comparisons = comparisons
        self._diverging = diverging
        facts = diverging.as_json()
        super().__init__(
            f"{diverging.stage} of run {original} gives another result now",
            observed=f"{counted(facts['keys_differing'], 'unit')} with a result in only one of original and replay, "
            f"{facts['results_differing']} with another result; the first is {facts['first']}",
            expected="the original's outputs, which stay current",
            next_step=f"kfm replay compare {original}; to replace results on purpose, kfm replay run with an approval",
        )

    @override
    def audit_events(self, attempt: StageAttempt) -> Sequence[AuditEvent]:
        return list(_comparison_events(attempt, self._original, self._comparisons, self._diverging))


@dataclass(kw_only=True)
class ReplayedParse(ChainNode):
    """Claim the succeeded units of the original run, if its repeated stages give equal results."""

    operator = MessageParse.operator

    original: str
    decision: Decision
    comparisons: list[StageComparison] = field(default_factory=list, repr=False)
    _claimed: int = field(default=0, init=False, repr=False)

    @override
    def inputs(self) -> Sequence[ManifestEntry]:
        return [ManifestEntry(uri=f"run:{self.original}")]

    @override
    def params(self) -> Mapping[str, Any]:
        # Each replay has a separate content hash, because it must not reuse the output of an earlier replay.
        return {**super().params(), "replay_of": self.original, "replayed_by": self.run_id}

    @override
    def transform(self) -> list[Envelope]:
        plan = self.pipeline.card.replay_plan.replay
        self.comparisons = list(compare_run(self.pipeline, dataset=self.dataset, run_id=self.original))
        for comparison in self.comparisons:
            if comparison.diverges(plan):
                raise ReplayDivergedError(original=self.original, comparisons=self.comparisons, diverging=comparison)
        parsed = self.pipeline.stages.port.load_output(self.kind, self.original)
        units = list(parsed.envelopes) if parsed else []
        if elsewhere := sorted({unit.partition for unit in units} - {self.partition}):
            raise RunReplayRefusedError(
                observed=f"units of {', '.join(elsewhere)}",
                expected=f"units of {self.partition}",
                next_step="start the replay for the day of the run",
            )
        self._require_approval(units)
        return units

    def _require_approval(self, units: Sequence[Envelope]) -> None:
        """If the override needs an approval, propose it and raise RunReplayRefusedError.

        Not called by `apply`, so that the proposal survives a rollback of the node's transaction.
        """
        ledger = self.pipeline.ledger
        with self.pipeline.database.transaction() as tx:
            if not ledger.review.required(self.pipeline.settings, self.decision, tx=tx):
                return
            current = ledger.succeeded_of_run(self.original, [unit.wal_id for unit in units], tx=tx)
            if not ledger.review.unapproved(current, GovernanceAction.REPEAT, actor=self.decision.actor, tx=tx):
                return
            selection = {GovernanceAction.REPEAT: current}
            waiting = (
                proposal.proposal_id
                for proposal in ledger.review.waiting(tx=tx)
                if proposal.decision == self.decision and ledger.review.units(proposal.proposal_id, tx=tx) == selection
            )
            proposal_id = next(waiting, None) or ledger.review.propose(
                Command.RUN_REPLAY, self.decision, selection, content={"run_id": self.original}, tx=tx
            )
        raise RunReplayRefusedError(
            "the replay of a run waits for a second person",
            observed=f"proposal {proposal_id}, of {counted(len(current), 'unit')} of run {self.original}",
            expected="an approval by another actor",
            next_step=f"kfm governance approve {proposal_id}, then start the replay again",
        )

    @override
    def apply(self, tx: Transaction, computed: list[Envelope], /) -> list[Envelope]:
        ledger = self.pipeline.ledger
        current = ledger.succeeded_of_run(self.original, [unit.wal_id for unit in computed], tx=tx)
        requeued = ledger.override(
            current,
            from_status=Status.SUCCEEDED,
            action=GovernanceAction.REPEAT,
            decision=self.decision,
            tx=tx,
        )
        claimed = ledger.claim(
            dataset=self.dataset,
            partition=self.partition,
            run_id=self.run_id,
            limit=max(len(requeued), 1),
            wal_ids=requeued,
            tx=tx,
        )
        if not claimed:
            raise RunReplayRefusedError(
                observed=f"all units of {self.dataset} changed after run {self.original}, or a kill switch is on",
                expected="units that succeeded in that run and have not changed since",
                next_step="see kfm runs show, and kfm governance paused",
            )
        self._claimed = len(claimed)
        return claimed

    @override
    def claimed(self, batch: Sequence[Envelope]) -> ManifestEntry:
        """Return the manifest entry of the claimed units."""
        return claimed_of(self, batch)

    @override
    def audit_lines(self, attempt: StageAttempt) -> Sequence[AuditEvent]:
        """Return the comparisons, and the decision to repeat the units."""
        details = {"actor": self.decision.actor, "change_ref": self.decision.change_ref, "units": self._claimed}
        return [
            *_comparison_events(attempt, self.original, self.comparisons, None),
            attempt.event(AuditKind.OVERRIDE, GovernanceAction.REPEAT.value, details),
        ]

    @override
    def after_commit(self, batch: Sequence[Envelope]) -> None:
        """Withdraw the original's Items if the plan has `compensate_before_replay`.

        The claims are committed before the withdrawal, because files cannot be rolled back with a transaction: if the
        claims were lost and the Items withdrawn, no run would write the Items again. With the claims, the units' next
        run writes the Items in any case, so an error here does not fail the replay.
        """
        if not self.pipeline.card.replay_plan.replay.compensate_before_replay:
            return
        store = self.pipeline.stages.lifecycle.store
        with self.pipeline.database.snapshot() as tx:
            registered = store.newest(self.original, f"{self.dataset}.{StacRegister.operator}", tx=tx)
        if registered is None:
            return
        try:
            with self.pipeline.database.transaction() as tx:
                outcome = self._compensated(batch, tx)
                store.audit.append([registered.event(AuditKind.COMPENSATION, *outcome)], tx=tx)
        except Exception as error:
            _LOG.exception(
                "the Items of run %s could not be withdrawn before its replay",
                self.original,
                exc_info=redacted_error(error),
            )
            with self.pipeline.database.transaction() as tx:
                details = {"error": type(error).__name__, "because": self.run_id}
                store.audit.append([registered.event(AuditKind.COMPENSATION, "failed", details)], tx=tx)

    def _compensated(self, claimed: Sequence[Envelope], tx: Transaction) -> tuple[str, Mapping[str, Any]]:
        """Compensate unless another run may rely on the Items; return the audit's event and details."""
        fence = self.pipeline.ledger.leases.fence(self.run_id)
        refused = fence(tx, {unit.wal_id: unit.attempt for unit in claimed})
        if refused:
            return "left", {"reason": ", ".join(sorted(set(refused.values()))), "because": self.run_id}
        if self._others_rely(claimed):
            return "left", {"reason": "another run may rely on the Items", "because": self.run_id}
        return "done", {**self._compensate(tx), "because": self.run_id}

    def _others_rely(self, claimed: Sequence[Envelope]) -> bool:
        """Return whether the original run wrote Items of units that this run has not claimed."""
        output = self.pipeline.stages.port.load_output(f"{self.dataset}.{StacRegister.operator}", self.original)
        units = output.envelopes if output else ()
        registered = {unit.wal_id for unit in units if unit.stac and unit.stac.item_href}
        return bool(registered - {unit.wal_id for unit in claimed})

    def _compensate(self, tx: Transaction) -> Mapping[str, Any]:
        """Withdraw the original's Items. Its lineage stays: the repeated stages gave equal results."""
        parts = {"pipeline": self.pipeline, "dataset": self.dataset, "partition": self.partition}
        node = StacRegister(**parts, run_id=self.original)  # type: ignore[arg-type]
        state = self.pipeline.stages.run_states.get(node.kind, self.original)
        undone = node.compensate(tx=tx)
        if state is not None:
            self.pipeline.stages.port.revoke(state, by=f"the replay in run {self.run_id}", tx=tx)
        return undone or {}


def _comparison_events(
    attempt: StageAttempt,
    original: str,
    comparisons: Sequence[StageComparison],
    diverging: StageComparison | None,
) -> Iterator[AuditEvent]:
    for comparison in comparisons:
        event = "diverged" if comparison is diverging else "compared"
        yield attempt.event(AuditKind.REPLAY, event, {"replay_of": original, **comparison.as_json()})
