"""The port to run-state, by (dataset_id, run_id): decides skips and records every outcome.

All run-state of stages passes through here, together with the outputs that the records name. Belongs here: the content
of a record, and the skips that a record causes. Does not belong here: the stores (`run_state/`), or when a stage calls
the port (`run_contract.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.idempotent_node.transaction import NodeResult, Output
from kfm_dagster.run_state.record import Outcome, RunState, ValidationSummary
from kfm_dagster.run_state.store import RunStateStore
from kfm_dagster.stages.batch import SkipCause, StageBatch, StoredEnvelopes
from kfm_dagster.stages.envelope_table import Column, columns_of, from_parquet, to_parquet
from kfm_dagster.stages.failure import RolledBackError
from kfm_dagster.storage.artifacts import ArtifactReference, Artifacts
from kfm_dagster.storage.database import Transaction
from kfm_dagster.telemetry.totals import Total, count


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStateKey:
    """Key of a record: the node, the run, and the hash of the node's inputs."""

    dataset_id: str
    run_id: str
    inputs_hash: str


@dataclass(frozen=True, kw_only=True)
class RunStatePort:
    """Reads and writes a run-state store, and stores the outputs that its records name."""

    run_states: RunStateStore
    artifacts: Artifacts
    clock: Callable[[], datetime]
    lakefs_branch: str

    def skip(self, key: RunStateKey, *, is_over: Callable[[], bool]) -> StageBatch | None:
        """Return the node's earlier output in this run, if no work is left. Raises RolledBackError.

        `is_over` returns whether the run has no claim left; the node's record and output then remain (RSP-18).
        `is_over` is called only if units failed, or if the inputs differ (another contract, card or feed).
        """
        earlier = self.run_states.get(key.dataset_id, key.run_id)
        if earlier is None:
            return None
        if earlier.rolled_back_by is not None:
            raise RolledBackError(stage=key.dataset_id, run_id=key.run_id, by=earlier.rolled_back_by)
        if earlier.artifact_uri is None:
            return None
        if earlier.inputs_hash != key.inputs_hash:
            return self._loaded(earlier, skipped=SkipCause.OTHER_INPUTS) if is_over() else None
        if earlier.outcome is not Outcome.SUCCESS and (earlier.outcome is Outcome.SKIPPED or not is_over()):
            return None
        return self._loaded(earlier, skipped=SkipCause.ALREADY_SUCCEEDED)

    def load_output(self, dataset_id: str, run_id: str) -> StageBatch | None:
        """Return a node's output in a run, or None."""
        state = self.run_states.get(dataset_id, run_id)
        return None if state is None or state.artifact_uri is None else self._loaded(state)

    def is_intact(self, output: Output) -> bool:
        """Return whether an output exists, and run-state still has it for the same inputs.

        Run-state stored beside the data (on their lakeFS branch, or in a Delta table) is reverted with the data.
        APPLIED in the database then describes an effect that no longer exists. Retention may also delete an old output.
        """
        record = output.record
        state = self.run_states.get(record["dataset_id"], record["run_id"])
        if state is None or state.inputs_hash != record["inputs_hash"] or state.rolled_back_by is not None:
            return False
        return self.artifacts.has(ArtifactReference(uri=record["artifact_uri"], sha256=record["artifact_sha256"]))

    def keep(
        self,
        key: RunStateKey,
        envelopes: Sequence[Envelope],
        summary: ValidationSummary,
        *,
        earlier: Sequence[Column] = (),
        tx: Transaction,
    ) -> StageBatch:
        """Store an output and record its outcome; `earlier` are the columns of the node's input."""
        # Written before the commit that names it: a rollback leaves an unused file, never a record without its output.
        columns = columns_of(envelopes, earlier=earlier)
        content = to_parquet(columns)
        artifact = self.artifacts.put(content, suffix="parquet")
        state = self._record(key, summary.outcome, summary.as_json(), artifact=artifact, tx=tx)
        return StageBatch(envelopes=envelopes, state=state, stored_bytes=len(content), columns=columns)

    def reuse(self, key: RunStateKey, skipped: NodeResult, *, tx: Transaction) -> StageBatch:
        """Record a skip for content that an earlier run applied; return that run's output."""
        record, by = skipped.output.record, skipped.applied_by.payload["context"]["run_id"]
        summary = {**record["validation_summary"], "cause": SkipCause.CONTENT_APPLIED.value, "applied_by": by}
        artifact = ArtifactReference(uri=record["artifact_uri"], sha256=record["artifact_sha256"])
        state = self._record(key, Outcome.SKIPPED, summary, artifact=artifact, tx=tx)
        self.count_skip(key, tx)
        # Loaded only on access: usually the next nodes reuse their outputs, too, and never read this batch.
        return StageBatch(
            envelopes=StoredEnvelopes(record["units"], lambda: from_parquet(self.artifacts.get(artifact))),
            state=state,
            skipped=SkipCause.CONTENT_APPLIED,
            applied_by=by,
            stored_bytes=record.get("bytes"),
        )

    def count_skip(self, key: RunStateKey, tx: Transaction) -> None:
        """Count a skipped node."""
        count(tx, Total.RUN_STATE_SKIPS, key.dataset_id)

    def fail(self, key: RunStateKey, tx: Transaction) -> None:
        """Record that a node failed as a whole."""
        nothing = ValidationSummary(checks=0, passed=0, failed=0)
        self._record(key, Outcome.FAILED, nothing.as_json(), tx=tx)

    def revoke(self, state: RunState, *, by: str, tx: Transaction) -> None:
        """Record an output as withdrawn; run-state outside the database is written after the commit."""
        self.run_states.put(state.revoked(by=by, at=self.clock()), tx)

    def _record(
        self,
        key: RunStateKey,
        outcome: Outcome,
        summary: Mapping[str, Any],
        *,
        artifact: ArtifactReference | None = None,
        tx: Transaction,
    ) -> RunState:
        state = RunState(
            dataset_id=key.dataset_id,
            run_id=key.run_id,
            lakefs_branch=self.lakefs_branch,
            inputs_hash=key.inputs_hash,
            validation_summary=summary,
            outcome=outcome,
            recorded_at=self.clock(),
            artifact_uri=artifact.uri if artifact else None,
            artifact_sha256=artifact.sha256 if artifact else None,
        )
        self.run_states.put(state, tx)
        count(tx, Total.RUN_STATES, key.dataset_id, outcome)
        return state

    def _loaded(self, state: RunState, *, skipped: SkipCause | None = None) -> StageBatch:
        content = self.artifacts.get(ArtifactReference(uri=str(state.artifact_uri), sha256=str(state.artifact_sha256)))
        return StageBatch(envelopes=from_parquet(content), state=state, skipped=skipped, stored_bytes=len(content))
