"""Small nodes over tables of words: each reads one object and leaves another, both outside the database."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from obstore.store import LocalStore

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.idempotent_node.compute_hash import CodeFingerprint, ManifestEntry
from kfm_dagster.idempotent_node.transaction import IdempotentNodes
from kfm_dagster.run_state.record import ValidationSummary
from kfm_dagster.run_state.store import RunStateStore
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster.stages.card import Card
from kfm_dagster.stages.gates.verdict import Verdict, of_every_gate
from kfm_dagster.stages.node import StageNode
from kfm_dagster.stages.run_contract import StageRunner
from kfm_dagster.storage.artifacts import Artifacts
from kfm_dagster.storage.database import Database, Transaction
from kfm_dagster_tests.run_state.conftest import NOW

Tables = MutableMapping[str, str]
"""Where the words stand, by name: on a branch, or in Delta tables."""


@dataclass
class Shout(StageNode):
    """Write the words of one table in capitals into another."""

    tables: Tables
    reads: str
    writes: str
    step: str = "commit"
    ran: bool = False

    @property
    def kind(self) -> str:
        return f"words.{self.writes}"

    @property
    def name(self) -> str:
        return f"{self.kind}@2026-01-01"

    def inputs(self) -> Sequence[ManifestEntry]:
        digest = hashlib.sha256(self.tables[self.reads].encode()).hexdigest()
        return [ManifestEntry(uri=f"table:{self.reads}", checksum=digest)]

    def params(self) -> Mapping[str, Any]:
        return {}

    def context(self) -> Mapping[str, Any]:
        return {}

    def transform(self) -> list[Envelope]:
        self.ran = True
        self.tables[self.writes] = self.tables[self.reads].upper() + "!"
        return []

    def verify(self, made: list[Envelope], /) -> None:
        assert self.tables[self.writes].endswith("!")

    def apply(self, tx: Transaction, made: list[Envelope], /) -> list[Envelope]:
        return made

    def gates(self, batch: Sequence[Envelope], *, of: str) -> Sequence[Verdict]:
        return of_every_gate((), maker=of)

    def summarize(self, batch: Sequence[Envelope]) -> ValidationSummary:
        return ValidationSummary(checks=1, passed=1, failed=0)


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
            artifacts=Artifacts(lambda: LocalStore(self.folder / "storage", mkdir=True)),
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
