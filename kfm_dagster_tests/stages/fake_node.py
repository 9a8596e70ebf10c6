"""A node made for tests of the run contract, and how it is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.idempotent_node.compute_hash import ManifestEntry
from kfm_dagster.run_state.record import ValidationSummary
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster.stages.gates.verdict import Gate, Verdict
from kfm_dagster.stages.run_contract import StageRunner
from kfm_dagster.storage.database import Transaction

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class FakeNode:
    """A node that counts what is done to it."""

    batch: list[Envelope]
    kind: str = "nexrad-l2.integrity_check"
    step: str = "commit"
    received: Sequence[Envelope] = ()
    setting: int = 1
    fails: Exception | None = None
    verification_fails: Exception | None = None
    verdicts: Sequence[Verdict] = ()
    of_input: bool = False
    """Whether the verdicts are of what it is given, too."""
    clock: str | None = None
    is_finished: bool = True
    calls: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.kind}@2025-04-01"

    def inputs(self) -> Sequence[ManifestEntry]:
        return []

    def params(self) -> Mapping[str, Any]:
        return {"setting": self.setting}

    def context(self) -> Mapping[str, Any]:
        return {}

    def unlocked(self) -> str | None:
        return self.clock

    def gates(self, batch: Sequence[Envelope], *, of: str) -> Sequence[Verdict]:
        heard = self.verdicts if self.of_input or of == self.kind else ()
        said = {verdict.gate: verdict for verdict in heard}
        return [said.get(gate, Verdict.not_applicable(gate, "none", "none")) for gate in Gate]

    def can_reuse_output(self, tx: Transaction) -> bool:
        return self.is_finished

    def transform(self) -> list[Envelope]:
        self.calls.append("transform")
        if self.fails:
            raise self.fails
        return self.batch

    def verify(self, made: list[Envelope], /) -> None:
        if self.verification_fails:
            raise self.verification_fails

    def apply(self, tx: Transaction, made: list[Envelope], /) -> list[Envelope]:
        self.calls.append("apply")
        return made

    def summarize(self, batch: Sequence[Envelope]) -> ValidationSummary:
        bad = sum(1 for unit in batch if unit.failure and not unit.gate_issues)
        return ValidationSummary(checks=len(batch), passed=len(batch) - bad, failed=bad)

    def after_commit(self, batch: Sequence[Envelope]) -> None:
        self.calls.append("after_commit")


@dataclass
class FakeEffectNode(FakeNode):
    """One that has left something outside the database."""

    compensation_fails: Exception | None = None
    is_owned: bool = True

    def compensate(self, *, tx: Transaction | None = None) -> Mapping[str, Any] | None:
        self.calls.append("compensate")
        if self.compensation_fails:
            raise self.compensation_fails
        return {"undone": 1}

    def count_owned(self, tx: Transaction) -> int:
        return len(self.received) if self.is_owned else 0


@dataclass
class FakeClaimingNode(FakeNode):
    """One whose run claims units."""

    holds: bool = False

    def holds_units(self, tx: Transaction) -> bool:
        return self.holds


def execute(
    runner: StageRunner, node: FakeNode, *, run_id: str = "run", upstream: StageBatch | None = None
) -> StageBatch:
    return runner.commit(runner.run(node, run_id=run_id, upstream=upstream))
