"""The run contract: the steps around every node, always in the same order.

    inputs_hash -> success in run-state? skip -> upstream succeeded and gates of the entry pass? running
      -> content_hash applied before? reuse that output
      -> intent PENDING -> compute -> read back its effects outside the database -> gates of the output
      -> one transaction: ledger effect, output, APPLIED, checkpoint, run-state, stage succeeded
      on failure: classify the error -> failed -> compensation -> rolled_back

`StageRunner.run` computes an output, `StageRunner.commit` stores it; Dagster's op calls `run` and its IO manager
`commit`, so that every output is stored in the same way. Belongs here: the order. Does not belong here: a node's work
(`ingest/nodes.py`), the stage around a node (`staged.py`), run-state (`port.py`), transitions of a stage
(`lifecycle.py`), or Dagster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial

from kfm_dagster.failpoints import Failpoint, failpoint_context, hit
from kfm_dagster.idempotent_node.checkpoint import lock_node
from kfm_dagster.idempotent_node.compute_hash import CodeFingerprint
from kfm_dagster.idempotent_node.node import content_of, transformed
from kfm_dagster.idempotent_node.transaction import Content, IdempotentNodes, noted, rerun_of
from kfm_dagster.idempotent_node.wal import IntentStatus
from kfm_dagster.redaction import redacted_error
from kfm_dagster.run_state.record import Outcome
from kfm_dagster.run_state.store import RunStateStore
from kfm_dagster.stages.batch import SkipCause, StageBatch
from kfm_dagster.stages.card import StageState, StateMachine
from kfm_dagster.stages.failure import RolledBackError, StageFailedError, StageRefusedError
from kfm_dagster.stages.lifecycle import StageLifecycle
from kfm_dagster.stages.node import StageNode
from kfm_dagster.stages.port import RunStatePort
from kfm_dagster.stages.staged import StagedNode
from kfm_dagster.stages.store import StageMoveError, StageStore
from kfm_dagster.storage.artifacts import Artifacts
from kfm_dagster.storage.database import Database, Transaction
from kfm_dagster.telemetry.traces import span

Begin = Callable[[], AbstractContextManager[Transaction]]
"""Begins a transaction, or returns an open one."""


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
    def lifecycle(self) -> StageLifecycle:
        """Moves the stages."""
        store = StageStore(self.database, clock=self.clock)
        return StageLifecycle(card=self.card, store=store, database=self.database, clock=self.clock)

    @cached_property
    def port(self) -> RunStatePort:
        """Reads and writes run-state."""
        return RunStatePort(
            run_states=self.run_states, artifacts=self.artifacts, clock=self.clock, lakefs_branch=self.lakefs_branch
        )

    def run(self, node: StageNode, *, run_id: str, upstream: StageBatch | None, force: str | None = None) -> StagedNode:
        """Skip or compute a node. A failure is recorded in run-state and raised (StageFailedError).

        If `force` has a reason, content that earlier runs applied is computed again.
        """
        node.received = upstream.envelopes if upstream else ()
        staged = StagedNode(node=node, run_id=run_id, received=upstream, lifecycle=self.lifecycle, port=self.port)
        facts = {"kfm.dataset_id": node.kind, "kfm.run_id": run_id}
        units = str(len(upstream.envelopes)) if upstream else ""
        with failpoint_context(**staged.labels, units=units), span("kfm.stage", facts) as opened:
            try:
                staged.skipped = self._skip(staged, self.database.transaction)
            except Exception as error:
                raise StageFailedError(dataset_id=node.kind, cause=error) from redacted_error(error)
            if staged.skipped is None:
                self._compute(staged, force)
            if staged.skipped is not None and staged.skipped.skipped is not None:
                opened.set_attribute("kfm.outcome", "skipped")
                opened.add_event("skipped", {"kfm.cause": staged.skipped.skipped.value})
            else:
                opened.set_attribute("kfm.outcome", "executed")
                hit(Failpoint.STAGE_COMPUTED)
            return staged

    def commit(self, staged: StagedNode) -> StageBatch:
        """Commit in one transaction: ledger effect, output, status APPLIED, checkpoint, run-state."""
        if staged.skipped is not None:
            return staged.skipped
        with failpoint_context(**staged.labels, units=str(len(staged.gated[0]) if staged.gated else 0)):
            batch = self._commit(staged)
            hit(Failpoint.STAGE_COMMITTED)
            staged.node.after_commit(batch.envelopes)
        return batch

    def _skip(self, staged: StagedNode, begin: Begin) -> StageBatch | None:
        """Return the node's earlier output in this run, if no work is left, and count the skip."""

        def is_over() -> bool:
            """Return whether this run holds no claim any more, so that the node has no work."""
            with begin() as tx:
                return not staged.node.holds_units(tx)

        earlier = self.port.skip(staged.key, is_over=is_over)
        if earlier is not None:
            with begin() as tx:
                self.port.count_skip(staged.key, tx)
                if earlier.skipped is SkipCause.OTHER_INPUTS:
                    self.lifecycle.note(staged.run_id, staged.kind, SkipCause.OTHER_INPUTS, tx=tx)
        return earlier

    def _compute(self, staged: StagedNode, force: str | None) -> None:
        node, run_id, snapshot = staged.node, staged.run_id, list[str]()
        try:
            content = content_of(staged, code=self.code, run_id=run_id, force=force)
            snapshot = [entry.checksum or entry.uri for entry in content.inputs]
            staged.unlocked = self.lifecycle.synchronise(node)
            self.nodes.meter.prepare()
            with self.database.transaction() as tx:
                # Lock the node first and append to the audit last, as a commit does, so that no deadlock is possible.
                lock_node(node.name, tx=tx)
                staged.skipped = self._done_meanwhile(staged, tx)
                if staged.skipped is None:
                    self._begin(staged, content, snapshot, force, tx)
            if staged.intent is not None:
                with self.nodes.failing(staged.intent):
                    staged.gated = transformed(staged)
        except Exception as error:
            self._fail(staged, error, snapshot)
            raise StageFailedError(dataset_id=node.kind, cause=error) from redacted_error(error)

    def _done_meanwhile(self, staged: StagedNode, tx: Transaction) -> StageBatch | None:
        """Return the output if another process of the run ended the stage since the first check.

        Without this check, a run that has settled its units would run the stage again and claim newly due units.
        """
        if not self._has_succeeded(staged, tx):
            return None
        return self._skip(staged, lambda: nullcontext(tx))

    def _has_succeeded(self, staged: StagedNode, tx: Transaction) -> bool:
        newest = self.lifecycle.store.newest(staged.run_id, staged.kind, tx=tx)
        return newest is not None and newest.state is StageState.SUCCEEDED

    def _begin(
        self, staged: StagedNode, content: Content, snapshot: Sequence[str], force: str | None, tx: Transaction
    ) -> None:
        """Start the stage and write its intent, or reuse the output of applied content."""
        attempt = self.lifecycle.start(
            staged.node, run_id=staged.run_id, upstream=staged.received, snapshot=snapshot, force=force, tx=tx
        )
        final = self._fresh_content(content, staged, tx)
        intent, skipped = self.nodes.begin(final, run_id=staged.run_id, tx=tx)
        if skipped is not None:
            staged.skipped = self.port.reuse(staged.key, skipped, tx=tx)
            self.lifecycle.succeed(attempt, staged.skipped, None, tx=tx)
        else:
            staged.content, staged.intent, staged.attempt = final, intent, attempt

    def _fail(self, staged: StagedNode, error: Exception, snapshot: Sequence[str] = ()) -> None:
        """Record a stage's failure: its attempt and run-state in one transaction.

        Nothing is written in three cases: the run is rolled back, another attempt has the stage (and its run-state), or
        the stage had succeeded and was not started again.
        """
        if isinstance(error, RolledBackError):
            return
        node, record = staged.node, partial(self.port.fail, staged.key)
        with noted(staged.kind):
            if staged.attempt is not None:
                self.lifecycle.fail(node, staged.attempt, error, received=staged.received, record=record)
            elif isinstance(error, StageRefusedError):
                self.lifecycle.refuse(node, run_id=staged.run_id, snapshot=snapshot, refused=error, record=record)
            elif not isinstance(error, StageMoveError):
                with self.database.transaction() as tx:
                    lock_node(node.name, tx=tx)
                    if not self._has_succeeded(staged, tx):
                        record(tx)

    def _fresh_content(self, content: Content, staged: StagedNode, tx: Transaction) -> Content:
        """Return the content, or content with a separate hash if the applied output is not reusable.

        An output is reusable if (1) the node allows it (`can_reuse_output`), (2) it exists and no rollback withdrew
        it, and (3) it is a success, or the node's input batch is itself a reused output. So an
        unsuccessful output is reused only together with its input batch.
        """
        reused = staged.received is not None and staged.received.reused
        while (applied := self.nodes.intents.applied(content.content_hash, tx=tx)) is not None:
            output = self.nodes.output(content.content_hash, tx=tx)
            succeeded = output is not None and output.record["outcome"] == Outcome.SUCCESS
            is_intact = output is not None and self.port.is_intact(output)
            if (succeeded or reused) and is_intact and staged.node.can_reuse_output(tx):
                break
            # The new hash contains the id of this run. If the output was withdrawn or is missing, the hash contains the
            # id of the run that made it instead, so that all later runs have the same hash.
            content = rerun_of(content, run_id=staged.run_id if is_intact else applied.run_id, applied=applied)
        return content

    def _commit(self, staged: StagedNode) -> StageBatch:
        if staged.intent is None or staged.attempt is None:
            raise ValueError(f"{staged.kind} has nothing to commit")
        try:
            with self.nodes.failing(staged.intent), self.database.transaction() as tx:
                batch = self._upsert(staged, tx)
                # Last: the audit is one chain, so an append blocks all other writers until the commit.
                of_node = () if batch.reused else staged.node.audit_lines(staged.attempt)
                self.lifecycle.succeed(staged.attempt, batch, staged.decision, of_node=of_node, tx=tx)
                return batch
        except Exception as error:
            self._fail(staged, error)
            raise

    def _upsert(self, staged: StagedNode, tx: Transaction) -> StageBatch:
        content, intent, output = staged.content, staged.intent, staged.gated
        if content is None or intent is None or output is None:
            raise ValueError(f"{staged.kind} has nothing to commit")
        self.nodes.lock(content.content_hash, tx=tx)
        final = self._fresh_content(content, staged, tx)
        if final != content:
            # Another worker committed first, so this one commits its claims under a separate content hash.
            self.nodes.intents.resolve(intent, IntentStatus.SKIPPED, tx=tx)
            second, _ = self.nodes.begin(final, run_id=staged.run_id, tx=tx)
            self.nodes.meter.transfer(intent.wal_id, second.wal_id)
            intent = second
        result = self.nodes.upsert(intent, lambda tx: staged.apply(tx, output), tx=tx)
        return staged.batch or self.port.reuse(staged.key, result, tx=tx)
