"""The run contract: what happens around every node, always in the same order.

    inputs_hash -> run-state says success? skip -> upstream succeeded, gates of the entry: running
      -> content_hash applied before? hand that output on
      -> intent PENDING -> compute -> read back what it left outside the database -> gates of the output
      -> one transaction: ledger effect, output, APPLIED, checkpoint, run-state, stage succeeded
      on failure: class the error -> failed -> compensation -> rolled_back

`StageRunner.run` computes, `StageRunner.commit` makes it durable; Dagster's op calls the first and its IO manager the
second, so that nothing is stored by two ways.
Belongs here: the order. Does not belong here: what a node does (`ingest/nodes.py`), how a stage moves (`keeper.py`), or
Dagster.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from kfm_dagster.idempotent_node.compute_hash import CodeFingerprint, ManifestEntry
from kfm_dagster.idempotent_node.transaction import Content, Effect, IdempotentNodes, Output, again, forced
from kfm_dagster.idempotent_node.wal import Intent, IntentStatus
from kfm_dagster.run_state.inputs_hash import inputs_hash
from kfm_dagster.run_state.record import Outcome, RunState, ValidationSummary
from kfm_dagster.run_state.store import RunStateStore
from kfm_dagster.seams import Seam, labelled, reach
from kfm_dagster.stages.batch import RecalledEnvelopes, SkipCause, StageBatch
from kfm_dagster.stages.card import StateMachine
from kfm_dagster.stages.computed import ComputedStage, looked, outcome_of, record_of, with_gates
from kfm_dagster.stages.envelope_table import from_parquet, to_parquet
from kfm_dagster.stages.failure import RolledBackError, StageFailedError, StageRefusedError
from kfm_dagster.stages.keeper import StageKeeper
from kfm_dagster.stages.node import Node
from kfm_dagster.stages.store import StageAttempt, StageStore
from kfm_dagster.storage.artifacts import ArtifactReference, Artifacts
from kfm_dagster.storage.database import Database, Transaction
from kfm_dagster.telemetry.measures import StepVolume
from kfm_dagster.telemetry.spans import span

_LOG = logging.getLogger(__name__)
STEP = "commit"
"""The one effect of a stage."""


@dataclass(frozen=True, kw_only=True)
class StageRunner:
    """Runs nodes under the run contract."""

    database: Database
    run_states: RunStateStore
    nodes: IdempotentNodes
    artifacts: Artifacts
    code: CodeFingerprint
    clock: Callable[[], datetime]
    card: StateMachine
    lakefs_branch: str = "main"

    @cached_property
    def keeper(self) -> StageKeeper:
        """Moves the stages."""
        store = StageStore(self.database, clock=self.clock)
        return StageKeeper(card=self.card, store=store, database=self.database, clock=self.clock)

    def run(self, node: Node, *, run_id: str, upstream: StageBatch | None, force: str | None = None) -> ComputedStage:
        """Skip or compute. A failure is recorded in run-state and raised as StageFailedError.

        With a reason to `force`, content that earlier runs applied is computed again.
        """
        inputs = [*node.inputs(), *([upstream.reference] if upstream else [])]
        digest = inputs_hash(inputs, self._parameters(node))
        facts = {"kfm.dataset_id": node.dataset_id, "kfm.run_id": run_id}
        units = str(len(upstream.envelopes)) if upstream else ""
        with labelled(**node.labels, units=units), span("kfm.stage", facts) as opened:
            try:
                batch = self._done(node, run_id=run_id, upstream=upstream, digest=digest)
            except Exception as error:
                raise StageFailedError(dataset_id=node.dataset_id, cause=error) from error
            if batch is not None:
                stage = ComputedStage(node=node, run_id=run_id, inputs_hash=digest, skipped=batch)
            else:
                stage = self._compute(node, run_id=run_id, upstream=upstream, digest=digest, force=force)
            if stage.skipped is not None and stage.skipped.skipped is not None:
                opened.set_attribute("kfm.outcome", "skipped")
                opened.add_event("skipped", {"kfm.cause": stage.skipped.skipped.value})
            else:
                opened.set_attribute("kfm.outcome", "executed")
                reach(Seam.STAGE_COMPUTED)
            return stage

    def commit(self, stage: ComputedStage) -> StageBatch:
        """Make a computed stage durable in one transaction: ledger effect, output, APPLIED, checkpoint, run-state."""
        if stage.skipped is not None:
            return stage.skipped
        with labelled(**stage.node.labels, units=str(len(stage.envelopes))):
            batch = self._commit(stage)
            reach(Seam.STAGE_COMMITTED)
            stage.node.after_commit(batch.envelopes)
        return batch

    def _done(self, node: Node, *, run_id: str, upstream: StageBatch | None, digest: str) -> StageBatch | None:
        """Return what the node has done in this run already, where nothing is left to it. Raises RolledBackError."""
        earlier = self.run_states.get(node.dataset_id, run_id)
        if earlier is None:
            return None
        if earlier.rolled_back_by is not None:
            raise RolledBackError(stage=node.dataset_id, run_id=run_id, by=earlier.rolled_back_by)
        if earlier.inputs_hash != digest or earlier.artifact_uri is None:
            return None
        if earlier.outcome is not Outcome.SUCCESS and not self._is_over(node, earlier, upstream):
            return None
        return self._loaded(earlier, skipped=SkipCause.ALREADY_SUCCEEDED)

    def _is_over(self, node: Node, earlier: RunState, upstream: StageBatch | None) -> bool:
        """Tell whether units failed in an output, and none of them is this run's any more: who retries them is another.

        Asked anew, every one would be refused, and that would be recorded over what had come of them.
        """
        if upstream is None or not upstream.envelopes or earlier.outcome is Outcome.SKIPPED:
            return False
        with self.database.transaction() as tx:
            return node.held(upstream.envelopes, tx) == 0

    def _compute(
        self, node: Node, *, run_id: str, upstream: StageBatch | None, digest: str, force: str | None
    ) -> ComputedStage:
        intent: Intent | None = None
        attempt: StageAttempt | None = None
        snapshot: list[str] = []
        try:
            content = self._content(node, run_id=run_id, upstream=upstream, force=force)
            snapshot = [entry.checksum or entry.uri for entry in content.inputs]
            unlocked = self.keeper.synchronise(node)
            self.nodes.meter.prepare()
            with self.database.transaction() as tx:
                # Before the audit, which a commit appends to last: neither waits for what the other one holds.
                self.nodes.lock_node(node.checkpoint, tx=tx)
                started = self.keeper.start(
                    node, run_id=run_id, upstream=upstream, snapshot=snapshot, force=force, tx=tx
                )
                own = self._own(content, node, run_id=run_id, received=upstream, tx=tx)
                begun = self.nodes.begin(own, run_id=run_id, tx=tx)
                if begun.output is not None and begun.applied_by is not None:
                    skipped = self._reuse(node, run_id, digest, begun.output, begun.applied_by, tx)
                    self.keeper.succeed(started, skipped, None, tx=tx)
                    return ComputedStage(node=node, run_id=run_id, inputs_hash=digest, skipped=skipped)
            intent, attempt = begun.intent, started
            received = upstream.envelopes if upstream else []
            with node.working(received):
                envelopes = node.compute(received)
                node.verify(envelopes)
                envelopes, judgement = self.keeper.weigh(node, envelopes)
        except Exception as error:
            if intent is not None:
                self._fail_intent(intent, error)
            overtaken = False
            if attempt is not None:
                overtaken = not self._fail_attempt(node, attempt, error, received=upstream)
            elif isinstance(error, StageRefusedError):
                with _noted(node.dataset_id):
                    self.keeper.refuse(node, run_id=run_id, snapshot=snapshot, refused=error)
            if not overtaken:
                self._record_failure(node, run_id=run_id, digest=digest)
            raise StageFailedError(dataset_id=node.dataset_id, cause=error) from error
        return ComputedStage(
            node=node,
            run_id=run_id,
            inputs_hash=digest,
            envelopes=envelopes,
            content=own,
            intent=intent,
            attempt=attempt,
            judgement=judgement,
            unlocked=unlocked,
            received=upstream,
        )

    def _parameters(self, node: Node) -> dict[str, Any]:
        """Return the node's parameters and the gates of the card, which decide as they do what leaves the chain."""
        return {**node.parameters(), "card_gates": self.card.gates.model_dump(mode="json")}

    def _content(self, node: Node, *, run_id: str, upstream: StageBatch | None, force: str | None) -> Content:
        batch = (
            []
            if upstream is None
            else [ManifestEntry(uri=upstream.reference.uri, checksum=upstream.reference.checksum)]
        )
        parameters = self._parameters(node)
        return Content(
            node=node.checkpoint,
            kind=node.dataset_id,
            step=STEP,
            inputs=[*node.manifest(), *batch],
            params=parameters if force is None else forced(parameters, run_id=run_id, reason=force),
            code=self.code,
            context={**node.context(), "run_id": run_id},
        )

    def _own(
        self, content: Content, node: Node, *, run_id: str, received: StageBatch | None, tx: Transaction
    ) -> Content:
        """Return the content, or the same as content of its own where what was applied must not be handed on.

        It may be handed on when nothing it names is in work, when no rollback took it back, and when it was a success
        or belongs to a batch that was handed on itself: what failed in a batch of this run is tried again.
        """
        reused = received is not None and received.handed_on
        while (applied := self.nodes.intents.applied(content.content_hash, tx=tx)) is not None:
            output = self.nodes.output(content.content_hash, tx=tx)
            succeeded = output is not None and output.record["outcome"] == Outcome.SUCCESS
            stands = self._stands(output)
            if (succeeded or reused) and stands and node.finished(tx):
                break
            # What was taken back is made up for once, and then handed on again; anything else is this run's own.
            content = again(content, run_id=run_id if stands else applied.run_id, applied=applied)
        return content

    def _stands(self, output: Output | None) -> bool:
        """Tell whether run-state still says that the run which made an output made it of these inputs.

        A rollback of the data takes run-state with it where that is on their branch, or in a table restored with them;
        APPLIED in the database then tells of an effect that is gone.
        """
        if output is None:
            return False
        state = self.run_states.get(output.record["dataset_id"], output.record["run_id"])
        return state is not None and state.inputs_hash == output.record["inputs_hash"] and state.rolled_back_by is None

    def _reuse(
        self, node: Node, run_id: str, digest: str, output: Output, applied_by: Intent, tx: Transaction
    ) -> StageBatch:
        """Hand an earlier run's output on, and say so in this run's record."""
        record = output.record
        by = applied_by.payload["context"]["run_id"]
        state = RunState(
            dataset_id=node.dataset_id,
            run_id=run_id,
            lakefs_branch=self.lakefs_branch,
            inputs_hash=digest,
            validation_summary={
                **record["validation_summary"],
                "cause": SkipCause.CONTENT_APPLIED.value,
                "applied_by": by,
            },
            outcome=Outcome.SKIPPED,
            recorded_at=self.clock(),
            artifact_uri=record["artifact_uri"],
            artifact_sha256=record["artifact_sha256"],
        )
        self.run_states.put(state, tx)
        # Nobody may ever look into them: below an unchanged batch every node hands on.
        return StageBatch(
            envelopes=RecalledEnvelopes(record["units"], lambda: from_parquet(self._stored(state))),
            state=state,
            skipped=SkipCause.CONTENT_APPLIED,
            applied_by=by,
            stored_bytes=record.get("bytes"),
        )

    def _commit(self, stage: ComputedStage) -> StageBatch:
        if stage.intent is None or stage.content is None or stage.attempt is None:
            raise ValueError(f"{stage.node.dataset_id} has nothing to commit")
        try:
            with self.database.transaction() as tx:
                batch = self._upsert(stage, stage.content, stage.intent, tx)
                # Last, because the audit is one chain: whoever appends to it keeps the others waiting.
                of_node = () if batch.handed_on else stage.node.told(stage.attempt)
                self.keeper.succeed(stage.attempt, batch, stage.judgement, of_node=of_node, tx=tx)
                return batch
        except Exception as error:
            self._fail_intent(stage.intent, error)
            self._fail_attempt(stage.node, stage.attempt, error, received=stage.received)
            raise

    def _fail_intent(self, intent: Intent, error: BaseException) -> None:
        with _noted(intent.node):
            self.nodes.fail(intent, error)

    def _fail_attempt(
        self, node: Node, attempt: StageAttempt, error: BaseException, *, received: StageBatch | None
    ) -> bool:
        """Return False where another attempt has taken the stage over."""
        with _noted(node.dataset_id):
            return self.keeper.fail(node, attempt, error, received=received)
        return True

    def _upsert(self, stage: ComputedStage, content: Content, intent: Intent, tx: Transaction) -> StageBatch:
        node = stage.node
        self.nodes.lock(content.content_hash, tx=tx)
        own = self._own(content, node, run_id=stage.run_id, received=stage.received, tx=tx)
        if own != content:
            # Another worker was first, and its units are in work: what this one claims is content of its own.
            self.nodes.intents.resolve(intent, IntentStatus.SKIPPED, tx=tx)
            anew = self.nodes.begin(own, run_id=stage.run_id, tx=tx).intent
            self.nodes.meter.hand_on(intent.wal_id, anew.wal_id)
            intent = anew
        made: list[StageBatch] = []

        def effect(tx: Transaction) -> Effect:
            made.append(self._make_durable(stage, tx))
            volume = StepVolume(rows_out=len(made[0].envelopes), bytes_out=made[0].stored_bytes)
            if stage.received is not None:
                rows, size = len(stage.received.envelopes), stage.received.stored_bytes
                volume = replace(volume, rows_in=rows, bytes_in=size)
            return Effect(record=record_of(made[0]), volume=volume)

        upserted = self.nodes.upsert(intent, effect, tx=tx)
        if made:
            return made[0]
        applied_by = self.nodes.intents.applied(intent.content_hash, tx=tx) or intent
        return self._reuse(node, stage.run_id, stage.inputs_hash, upserted.output, applied_by, tx)

    def _make_durable(self, stage: ComputedStage, tx: Transaction) -> StageBatch:
        envelopes = stage.node.apply(tx, stage.envelopes)
        # Written before the commit that names it: a rollback leaves an orphan, never a record without its output.
        content = to_parquet(envelopes)
        artifact = self.artifacts.put(content, suffix="parquet")
        summary = with_gates(stage.node.summarize(envelopes), stage)
        state = RunState(
            dataset_id=stage.node.dataset_id,
            run_id=stage.run_id,
            lakefs_branch=self.lakefs_branch,
            inputs_hash=stage.inputs_hash,
            validation_summary=summary.as_json(),
            outcome=outcome_of(summary),
            recorded_at=self.clock(),
            artifact_uri=artifact.uri,
            artifact_sha256=artifact.sha256,
        )
        self.run_states.put(state, tx)
        return StageBatch(
            envelopes=envelopes, state=state, stored_bytes=len(content), judgement=looked(stage.judgement)
        )

    def recall(self, dataset_id: str, run_id: str) -> StageBatch | None:
        """Return the output that a node has in a run, or None when it has none."""
        state = self.run_states.get(dataset_id, run_id)
        if state is None or state.artifact_uri is None:
            return None
        return self._loaded(state)

    def _loaded(self, state: RunState, *, skipped: SkipCause | None = None) -> StageBatch:
        content = self._stored(state)
        return StageBatch(envelopes=from_parquet(content), state=state, skipped=skipped, stored_bytes=len(content))

    def _stored(self, state: RunState) -> bytes:
        reference = ArtifactReference(uri=str(state.artifact_uri), sha256=str(state.artifact_sha256))
        return self.artifacts.get(reference)

    def _record_failure(self, node: Node, *, run_id: str, digest: str) -> None:
        state = RunState(
            dataset_id=node.dataset_id,
            run_id=run_id,
            lakefs_branch=self.lakefs_branch,
            inputs_hash=digest,
            validation_summary=ValidationSummary(checks=0, passed=0, failed=0).as_json(),
            outcome=Outcome.FAILED,
            recorded_at=self.clock(),
        )
        with _noted(node.dataset_id), self.database.transaction() as tx:
            self.run_states.put(state, tx)


@contextmanager
def _noted(what: str) -> Iterator[None]:
    """Let what cannot be written down not take the place of the failure that it is about, which asks for a retry."""
    try:
        yield
    except Exception:
        _LOG.exception("the failure of %s could not be written down", what)
