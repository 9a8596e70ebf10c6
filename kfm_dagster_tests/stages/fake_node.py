"""A node for tests of the run contract, and its execution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from obstore.store import ObjectStore

from kfm_dagster.configs import parse
from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.idempotent_node.compute_hash import CodeFingerprint
from kfm_dagster.idempotent_node.transaction import IdempotentNodes
from kfm_dagster.run_state.record import ValidationSummary
from kfm_dagster.run_state.store import RunStateStore
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster.stages.card import STATE_MACHINE, Card, StateMachine
from kfm_dagster.stages.gates.verdict import Verdict, of_every_gate
from kfm_dagster.stages.node import StageNode
from kfm_dagster.stages.run_contract import StageRunner
from kfm_dagster.storage.artifacts import Artifacts
from kfm_dagster.storage.database import Database, Transaction

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class FakeNode(StageNode):
    """A node that counts its calls."""

    batch: list[Envelope]
    kind: str = "nexrad-l2.integrity_check"
    received: Sequence[Envelope] = ()
    setting: int = 1
    fails: Exception | None = None
    verification_fails: Exception | None = None
    verdicts: Sequence[Verdict] = ()
    of_input: bool = False
    """Whether the verdicts also apply to the node's input."""
    clock: str | None = None
    is_finished: bool = True
    holds: bool = True
    """Whether the node's run still claims a unit."""
    calls: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.kind}@2025-04-01"

    def params(self) -> Mapping[str, Any]:
        return {"setting": self.setting}

    def unlocked(self) -> str | None:
        return self.clock

    def gates(self, batch: Sequence[Envelope], *, of: str) -> Sequence[Verdict]:
        return of_every_gate(self.verdicts if self.of_input or of == self.kind else (), maker=of)

    def holds_units(self, tx: Transaction) -> bool:
        return self.holds

    def can_reuse_output(self, tx: Transaction) -> bool:
        return self.is_finished

    def transform(self) -> list[Envelope]:
        self.calls.append("transform")
        if self.fails:
            raise self.fails
        return self.batch

    def verify(self, output: list[Envelope], /) -> None:
        if self.verification_fails:
            raise self.verification_fails

    def apply(self, tx: Transaction, output: list[Envelope], /) -> list[Envelope]:
        self.calls.append("apply")
        return output

    def summarize(self, batch: Sequence[Envelope]) -> ValidationSummary:
        bad = sum(1 for unit in batch if unit.failure and not unit.gate_issues)
        return ValidationSummary(checks=len(batch), passed=len(batch) - bad, failed=bad)

    def after_commit(self, batch: Sequence[Envelope]) -> None:
        self.calls.append("after_commit")


@dataclass
class FakeEffectNode(FakeNode):
    """A node with an effect outside the database."""

    leaves_effects = True

    compensation_fails: Exception | None = None
    is_owned: bool = True

    def compensate(self, *, tx: Transaction | None = None) -> Mapping[str, Any] | None:
        self.calls.append("compensate")
        if self.compensation_fails:
            raise self.compensation_fails
        return {"undone": 1}

    def count_owned(self, tx: Transaction) -> int:
        return len(self.received) if self.is_owned else 0


def execute(
    runner: StageRunner, node: FakeNode, *, run_id: str = "run", upstream: StageBatch | None = None
) -> StageBatch:
    return runner.commit(runner.run(node, run_id=run_id, upstream=upstream))


def machine_with(*changes: tuple[str, str]) -> StateMachine:
    """Return the shipped state machine after replacements in its text."""
    text = Card.load().files[STATE_MACHINE].decode()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse(text, StateMachine, source="test")


def stage_runner(database: Database, run_states: RunStateStore, store: ObjectStore, **more: Any) -> StageRunner:
    """Return a runner under the shipped card with a fixed clock."""
    return StageRunner(
        database=database,
        run_states=run_states,
        nodes=IdempotentNodes(database, clock=lambda: NOW),
        artifacts=Artifacts(lambda: store),
        code=CodeFingerprint(code_sha="c0ffee", lockfile_hash="10cc"),
        clock=lambda: NOW,
        card=Card.load().machine,
        **more,
    )
