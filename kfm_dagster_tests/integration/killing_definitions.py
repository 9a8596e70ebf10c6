"""The product's definitions, with a death in every operator: each day of the test dies once, at its own point.

Loaded by the code server of `test_kill.py` in place of `kfm_dagster.definitions`. KFM_TEST_DEATHS names a folder with
one file per death: `<partition>` holds `<operator> <point>`. The run that reaches the point removes the file and kills
its own process with SIGKILL.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.definitions import build_definitions
from kfm_dagster.settings import Settings
from kfm_dagster.stages.run_contract import ComputedStage, StageBatch, StageRunner
from kfm_dagster.storage.artifacts import Artifacts

COMPUTED = "computed"
"""After the operator's work and its external effects, before anything is committed."""
COMMITTING = "committing"
"""Inside the transaction, after the ledger's part and the artifact."""
COMMITTED = "committed"
"""After the commit, before the messages are acknowledged."""


def die_here(node: Any, point: str) -> None:
    """Kill this process when its day dies at this operator and point."""
    death = Path(os.environ["KFM_TEST_DEATHS"]) / node.partition
    operator = node.dataset_id.split(".", 1)[1]
    if death.is_file() and death.read_text() == f"{operator} {point}":
        death.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


_run, _commit = StageRunner.run, StageRunner.commit


def _dying_run(self: StageRunner, node: Any, *, run_id: str, upstream: StageBatch | None) -> ComputedStage:
    stage = _run(self, node, run_id=run_id, upstream=upstream)
    die_here(node, COMPUTED)
    return stage


def _dying_commit(self: StageRunner, stage: ComputedStage) -> StageBatch:
    node: Any = stage.node
    put, after_commit = self.artifacts.put, node.after_commit

    def dying_put(self: Artifacts, content: bytes, *, suffix: str) -> Any:
        reference = put(content, suffix=suffix)
        die_here(node, COMMITTING)
        return reference

    def dying_after_commit(batch: Sequence[Envelope]) -> None:
        die_here(node, COMMITTED)
        after_commit(batch)

    self.artifacts.put = dying_put.__get__(self.artifacts)  # type: ignore[method-assign]
    node.after_commit = dying_after_commit
    try:
        return _commit(self, stage)
    finally:
        del self.artifacts.put


StageRunner.run = _dying_run  # type: ignore[method-assign]
StageRunner.commit = _dying_commit  # type: ignore[method-assign]


@dg.definitions
def defs() -> dg.Definitions:
    """Return the product's definitions."""
    return build_definitions(Settings.load())
