"""Comparison of a run with itself: repeat each stage from its saved input, without writing.

Reads objects and checkpoints only. Belongs here: equality of results (PCS-08). Does not belong here: the consequences
(`run_replay.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.errors import ConfigurationError, ExitCode
from kfm_dagster.ingest.node import Results
from kfm_dagster.ingest.nodes import Settle, chain
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster.stages.card import Replay, StageState
from kfm_dagster.stages.run_contract import StageRunner


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
    """Units with a result on one side only, sorted."""
    results_differing: tuple[WalId, ...]
    """Units with two results that differ, sorted."""

    def diverges(self, plan: Replay) -> bool:
        """Return whether keys or results differ that the plan requires to be equal."""
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
    replay, StoreSilentError if an object's store does not answer: then there is no result.
    """
    plan = pipeline.card.replay_plan.replay
    outputs = {node: _output(pipeline.stages, plan, f"{dataset}.{node.operator}", run_id) for node in chain()}
    # A failed unit has no comparable result: another attempt may have another outcome.
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
            observed="replay.enabled false", next_step="see replay_plan.yaml (KFM_CONFIGS_DIR), or kfm replay run"
        )
    with stages.database.snapshot() as tx:
        attempt = stages.lifecycle.store.newest(run_id, stage, tx=tx)
    saved = attempt is not None and attempt.state is StageState.SUCCEEDED
    if plan.require_checkpoint and not (saved and attempt is not None and attempt.checkpoint_uri is not None):
        raise RunReplayRefusedError(
            observed=f"{stage} has no checkpoint in run {run_id}",
            expected="a run whose every stage succeeded and saved one (state_machine.yaml, checkpoints)",
            next_step="kfm explain names the runs and what they did; kfm replay run does units again without one",
        )
    output = stages.port.load_output(stage, run_id)
    if output is None:
        raise RunReplayRefusedError(
            observed=f"{stage} has no output in run {run_id}, or it was taken back",
            expected="a run that stands",
            next_step="see kfm explain",
        )
    return output


def _compared(stage: str, original: Results, again: Results) -> StageComparison:
    common = original.keys() & again.keys()
    return StageComparison(
        stage=stage,
        units=len(original),
        original_sha256=_sha256(original),
        replayed_sha256=_sha256(again),
        keys_differing=tuple(sorted(original.keys() ^ again.keys())),
        results_differing=tuple(sorted(wal_id for wal_id in common if original[wal_id] != again[wal_id])),
    )


def _sha256(results: Results) -> str:
    digest = hashlib.sha256()
    for wal_id in sorted(results):
        digest.update(f"{wal_id} {hashlib.sha256(results[wal_id]).hexdigest()}\n".encode())
    return digest.hexdigest()
