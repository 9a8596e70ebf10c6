"""Small nodes over tables of words: each reads one object and leaves another, both outside the database."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from obstore.store import LocalStore

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.idempotent_node.compute_hash import CodeFingerprint, ManifestEntry
from kfm_dagster.idempotent_node.transaction import IdempotentNodes
from kfm_dagster.run_state.inputs_hash import InputReference
from kfm_dagster.run_state.record import ValidationSummary
from kfm_dagster.run_state.store import RunStateStore
from kfm_dagster.stages.audit import AuditEvent
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster.stages.card import Card
from kfm_dagster.stages.gates.verdict import Gate, Verdict
from kfm_dagster.stages.run_contract import StageRunner
from kfm_dagster.stages.store import StageAttempt
from kfm_dagster.storage.artifacts import Artifacts
from kfm_dagster.storage.database import Database, Transaction
from kfm_dagster_tests.run_state.conftest import NOW

Tables = MutableMapping[str, str]
"""Where the words stand, by name: on a branch, or in Delta tables."""


@dataclass
class Shout:
    """Write the words of one table in capitals into another."""

    tables: Tables
    reads: str
    writes: str
    labels: Mapping[str, str] = field(default_factory=dict)
    ran: bool = False

    @property
    def dataset_id(self) -> str:
        return f"words.{self.writes}"

    @property
    def checkpoint(self) -> str:
        return f"{self.dataset_id}@2026-01-01"

    def manifest(self) -> Sequence[ManifestEntry]:
        digest = hashlib.sha256(self.tables[self.reads].encode()).hexdigest()
        return [ManifestEntry(uri=f"table:{self.reads}", checksum=digest)]

    def inputs(self) -> Sequence[InputReference]:
        return [InputReference(uri=entry.uri, checksum=entry.checksum) for entry in self.manifest()]

    def parameters(self) -> Mapping[str, Any]:
        return {}

    def context(self) -> Mapping[str, Any]:
        return {}

    @property
    def partition(self) -> str:
        return "2025-04-01"

    @property
    def window(self) -> str:
        return "2025-04-01T00:00:00Z/P1D"

    @property
    def leaves_effects(self) -> bool:
        return False

    def unlocked(self) -> str | None:
        return None

    def gates(self, batch: Sequence[Envelope], *, of: str) -> Sequence[Verdict]:
        return [Verdict.not_applicable(gate, "none", "none") for gate in Gate]

    def compensate(self, *, tx: Transaction | None = None) -> Mapping[str, Any] | None:
        return {}

    def held(self, batch: Sequence[Envelope], tx: Transaction) -> int:
        return len(batch)

    def told(self, attempt: StageAttempt) -> Sequence[AuditEvent]:
        return []

    def finished(self, tx: Transaction) -> bool:
        return True

    def working(self, batch: Sequence[Envelope]) -> AbstractContextManager[None]:
        return nullcontext()

    def compute(self, batch: Sequence[Envelope]) -> list[Envelope]:
        self.ran = True
        self.tables[self.writes] = self.tables[self.reads].upper() + "!"
        return []

    def verify(self, batch: Sequence[Envelope]) -> None:
        assert self.tables[self.writes].endswith("!")

    def apply(self, tx: Transaction, batch: list[Envelope]) -> list[Envelope]:
        return batch

    def summarize(self, batch: Sequence[Envelope]) -> ValidationSummary:
        return ValidationSummary(checks=1, passed=1, failed=0)

    def after_commit(self, batch: Sequence[Envelope]) -> None:
        """Nothing."""


@dataclass
class Platform:
    """A pipeline of three nodes: wind > gusts > alarms, and beside them soil > moisture."""

    database: Database
    run_states: RunStateStore
    tables: Tables
    folder: Path
    branch: str

    def run(self, run_id: str) -> list[str]:
        """Run every node under the run contract; return which of them worked."""
        nodes = [Shout(self.tables, *names) for names in (("wind", "gusts"), ("gusts", "alarms"), ("soil", "moisture"))]
        for node in nodes:
            self.commit(node, run_id)
        return [node.writes for node in nodes if node.ran]

    def commit(self, node: Shout, run_id: str) -> StageBatch:
        runner = self.runner()
        return runner.commit(runner.run(node, run_id=run_id, upstream=None))

    def runner(self) -> StageRunner:
        return StageRunner(
            database=self.database,
            run_states=self.run_states,
            nodes=IdempotentNodes(self.database, clock=lambda: NOW),
            artifacts=Artifacts(LocalStore(self.folder / "storage", mkdir=True)),
            code=CodeFingerprint(code_sha="c0ffee", lockfile_hash="10cc"),
            clock=lambda: NOW,
            card=Card.load().machine,
            lakefs_branch=self.branch,
        )

    def agree(self) -> bool:
        """Whether every output is what its input gives: no success without its effect."""
        return all(
            self.tables[written] == self.tables[read].upper() + "!"
            for read, written in (("wind", "gusts"), ("gusts", "alarms"), ("soil", "moisture"))
        )
