"""A node made for tests of the run contract, and how it is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.idempotent_node.compute_hash import ManifestEntry
from kfm_dagster.run_state.inputs_hash import InputReference
from kfm_dagster.run_state.record import ValidationSummary
from kfm_dagster.stages.audit import AuditEvent
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster.stages.gates.verdict import Gate, Verdict
from kfm_dagster.stages.run_contract import StageRunner
from kfm_dagster.stages.store import StageAttempt
from kfm_dagster.storage.database import Transaction

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class FakeNode:
    """A node that counts what is done to it."""

    batch: list[Envelope]
    dataset_id: str = "nexrad-l2.integrity_check"
    labels: Mapping[str, str] = field(default_factory=dict)
    setting: int = 1
    fails: Exception | None = None
    verification_fails: Exception | None = None
    verdicts: Sequence[Verdict] = ()
    of_input: bool = False
    """Whether the verdicts are of what it is given, too."""
    leaves_effects: bool = False
    clock: str | None = None
    compensation_fails: Exception | None = None
    is_finished: bool = True
    is_held: bool = True
    calls: list[str] = field(default_factory=list)

    def inputs(self) -> Sequence[InputReference]:
        return []

    @property
    def partition(self) -> str:
        return "2025-04-01"

    @property
    def window(self) -> str:
        return "2025-04-01T00:00:00Z/P1D"

    def unlocked(self) -> str | None:
        return self.clock

    def gates(self, batch: Sequence[Envelope], *, of: str) -> Sequence[Verdict]:
        heard = self.verdicts if self.of_input or of == self.dataset_id else ()
        said = {verdict.gate: verdict for verdict in heard}
        return [said.get(gate, Verdict.not_applicable(gate, "none", "none")) for gate in Gate]

    def compensate(self, *, tx: Transaction | None = None) -> Mapping[str, Any] | None:
        self.calls.append("compensate")
        if self.compensation_fails:
            raise self.compensation_fails
        return {"undone": 1}

    @property
    def checkpoint(self) -> str:
        return f"{self.dataset_id}@2025-04-01"

    def manifest(self) -> Sequence[ManifestEntry]:
        return []

    def context(self) -> Mapping[str, Any]:
        return {}

    def finished(self, tx: Transaction) -> bool:
        return self.is_finished

    def verify(self, batch: Sequence[Envelope]) -> None:
        if self.verification_fails:
            raise self.verification_fails

    def parameters(self) -> Mapping[str, Any]:
        return {"setting": self.setting}

    def working(self, batch: Sequence[Envelope]) -> AbstractContextManager[None]:
        return nullcontext()

    def held(self, batch: Sequence[Envelope], tx: Transaction) -> int:
        return len(batch) if self.is_held else 0

    def told(self, attempt: StageAttempt) -> Sequence[AuditEvent]:
        return []

    def compute(self, batch: Sequence[Envelope]) -> list[Envelope]:
        self.calls.append("compute")
        if self.fails:
            raise self.fails
        return self.batch

    def apply(self, tx: Transaction, batch: list[Envelope]) -> list[Envelope]:
        self.calls.append("apply")
        return batch

    def summarize(self, batch: Sequence[Envelope]) -> ValidationSummary:
        bad = sum(1 for unit in batch if unit.failure and not unit.gate_issues)
        return ValidationSummary(checks=len(batch), passed=len(batch) - bad, failed=bad)

    def after_commit(self, batch: Sequence[Envelope]) -> None:
        self.calls.append("after_commit")


def execute(
    runner: StageRunner, node: FakeNode, *, run_id: str = "run", upstream: StageBatch | None = None
) -> StageBatch:
    return runner.commit(runner.run(node, run_id=run_id, upstream=upstream))
