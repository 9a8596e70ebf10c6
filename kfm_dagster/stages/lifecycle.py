"""The lifecycle: moves a stage by the card's decisions on its gates, and audits the reasons.

    open pending > gates of the entry > running > compute > gates of the output > succeeded, with the output's commit
    on failure: failed > compensation > rolled_back

Belongs here: moving a stage to the next state, auditing the move, retries. Does not belong here: the order of calls
(`run_contract.py`), the rules (`machine.py`), or the gates (`gates/`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter

from sqlalchemy.exc import DBAPIError

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.contracts.issues import GateIssue, Issue, Severity
from kfm_dagster.errors import DatabaseUnavailableError
from kfm_dagster.ledger.policy import backoff_seconds
from kfm_dagster.redaction import redacted_error
from kfm_dagster.run_state.record import Outcome
from kfm_dagster.stages.audit import AuditEvent, AuditKind
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster.stages.card import ErrorClass, StageState, StateMachine
from kfm_dagster.stages.failure import StageRefusedError, StageStoppedError, UnlockedClockError, classify
from kfm_dagster.stages.gates.verdict import of_every_gate
from kfm_dagster.stages.machine import (
    GateDecision,
    decide,
    ending,
    gate_events,
    idempotency_key,
    may_roll_back,
    may_start,
)
from kfm_dagster.stages.node import StageNode
from kfm_dagster.stages.store import StageAttempt, StageMoveError, StageStore
from kfm_dagster.storage.database import Database, Transaction
from kfm_dagster.telemetry.traces import span

_LOG = logging.getLogger(__name__)
Record = Callable[[Transaction], None]
"""Records the stage's failure in run-state, in the transaction that moves the attempt."""


@dataclass(frozen=True, kw_only=True)
class StageLifecycle:
    """Moves the attempts of stages."""

    card: StateMachine
    store: StageStore
    database: Database
    clock: Callable[[], datetime]

    def synchronise(self, node: StageNode) -> str | None:
        """Return the reason for a [Restricted] output, or None if the clock is locked.

        Raises UnlockedClockError if the card rejects stages under an unlocked clock.
        """
        why = node.unlocked()
        if why is not None and self.card.clock.unlocked == "reject":
            raise UnlockedClockError(
                f"{node.kind} may not write",
                observed=why,
                expected="a locked clock, calibrated within tau_calib",
                next_step="see kfm clock --ask; clock.unlocked of state_machine.yaml is the rule for an unlocked clock",
            )
        return why

    def start(
        self,
        node: StageNode,
        *,
        run_id: str,
        upstream: StageBatch | None,
        snapshot: Sequence[str],
        force: str | None,
        tx: Transaction,
    ) -> StageAttempt:
        """Open the next attempt and move it to running; `force` is the reason to recompute.

        Raises StageMoveError, or StageStoppedError, which the caller records by `refuse`.
        """
        attempt = self._open(node, run_id=run_id, snapshot=snapshot, tx=tx)
        decision = self._of_entry(node, upstream)
        if not may_start(decision, self.card, deps_succeeded=self._succeeded(upstream, tx)):
            raise StageStoppedError(stage=node.kind, decision=decision, why="may not start")
        forced = [] if force is None else [attempt.event(AuditKind.OVERRIDE, "forced", {"reason": force})]
        return self.store.move(attempt, StageState.RUNNING, lines=forced, tx=tx)

    def refuse(
        self, node: StageNode, *, run_id: str, snapshot: Sequence[str], refused: StageRefusedError, record: Record
    ) -> None:
        """Audit the refusal of a stage and call `record`; the attempt stays pending."""
        with self.database.transaction() as tx:
            attempt = self._open(node, run_id=run_id, snapshot=snapshot, tx=tx)
            self.store.audit.append(refused.audit_events(attempt), tx=tx)
            record(tx)

    @span("kfm.gates", {})
    def evaluate_gates(self, node: StageNode, batch: Sequence[Envelope]) -> tuple[list[Envelope], GateDecision]:
        """Evaluate the gates; mark the units at fault in the output. Raises StageStoppedError."""
        current = {unit.wal_id for unit in batch if unit.failure is None}
        decision = decide(node.gates(batch, of=node.kind), self.card, units=current, whole=node.leaves_effects)
        if ending(decision, self.card) is not StageState.SUCCEEDED:
            raise StageStoppedError(stage=node.kind, decision=decision, why="may not succeed")
        return [_marked(unit, decision) for unit in batch], decision

    def succeed(
        self,
        attempt: StageAttempt,
        batch: StageBatch,
        decision: GateDecision | None,
        *,
        of_node: Sequence[AuditEvent] = (),
        tx: Transaction,
    ) -> None:
        """Move an attempt to succeeded; store the output's digest, and the URI of a checkpoint."""
        lines = [*of_node, *(() if decision is None else gate_events(attempt, decision))]
        state = batch.state
        retrying = state.validation_summary.get("retrying")
        saved = attempt.stage.rsplit(".", 1)[-1] in self.card.checkpoints
        if saved:
            details = {"uri": state.artifact_uri, "sha256": state.artifact_sha256}
            lines.append(attempt.event(AuditKind.CHECKPOINT, "saved", details))
        self.store.move(
            attempt,
            StageState.SUCCEEDED,
            restricted=batch.restricted,
            checkpoint_uri=state.artifact_uri if saved else None,
            output_sha256=state.artifact_sha256,
            details={
                "units": len(batch.envelopes),
                **({"retrying": retrying} if retrying else {}),
                **({"reused": batch.applied_by} if batch.reused else {}),
            },
            lines=lines,
            tx=tx,
        )

    def fail(
        self,
        node: StageNode,
        attempt: StageAttempt,
        error: BaseException,
        *,
        received: StageBatch | None,
        record: Record,
    ) -> None:
        """Move a running attempt to failed, and undo its effects outside the database.

        The attempt moves on to rolled_back if the card allows it. If the attempt is not running any more, another
        process has taken over the stage, and `fail` does nothing.
        """
        lines = error.audit_events(attempt) if isinstance(error, StageRefusedError) else ()
        failed = None
        try:
            with self.database.transaction() as tx:
                details = {"error": type(error).__name__}
                failed = self.store.move(
                    attempt, StageState.FAILED, error_class=classify(error), details=details, lines=lines, tx=tx
                )
                record(tx)
        except StageMoveError as conflict:
            _LOG.warning("%s", conflict)
            return
        except Exception as record_error:
            # Run-state outside the database is written after the commit. If only that failed, the attempt has moved.
            cause = redacted_error(record_error)
            _LOG.exception("the failure of %s could not be recorded", node.kind, exc_info=cause)
        if failed is not None:
            self._roll_back(node, failed, received)

    def close(self, run_ids: Iterable[str]) -> None:
        """Move the attempts of dead runs to failed."""
        with self.database.transaction() as tx:
            for attempt in self.store.unfinished(run_ids, limit=1_000, tx=tx):
                # A worker that was wrongly considered dead may have ended its stage meanwhile.
                with suppress(StageMoveError), tx.nested():
                    facts = {"reason": "its run is dead"}
                    self.store.move(attempt, StageState.FAILED, error_class=ErrorClass.E_INTERNAL, details=facts, tx=tx)

    def note(self, run_id: str, stage: str, event: str, *, tx: Transaction) -> None:
        """Append an audit line about a stage without moving it; do nothing if no attempt was opened."""
        if (newest := self.store.newest(run_id, stage, tx=tx)) is not None:
            self.store.audit.append([newest.event(AuditKind.STOP, event)], tx=tx)

    def retry_in(self, run_id: str, stage: str, error_class: ErrorClass, *, tries: int = 1) -> float | None:
        """Return the seconds until the retry of a stage with this failure, or None for no retry.

        `tries` is the caller's count of its tries; attempts alone would not count a refused retry.
        """
        policy = self.card.retry_policy
        if error_class not in policy.retry_on:
            return None
        attempts: list[StageAttempt] = []
        # Failures of the database, and failures before an attempt was opened, are counted only by the caller.
        with suppress(DBAPIError, DatabaseUnavailableError), self.database.snapshot() as tx:
            attempts = self.store.of_run(run_id, stage=stage, tx=tx)
        attempt = max(attempts, key=attrgetter("attempt"), default=None)
        if attempt is not None and attempt.state is StageState.SUCCEEDED:
            return None
        number = tries if attempt is None else max(attempt.attempt, tries)
        if number > policy.max_retries:
            return None
        wait = backoff_seconds(policy.delays, key=f"{run_id}/{stage}", attempt=number)
        late = bool(attempts) and self.clock() + timedelta(seconds=wait) > attempts[0].opened_at + policy.deadline
        return None if late else wait

    def _open(self, node: StageNode, *, run_id: str, snapshot: Sequence[str], tx: Transaction) -> StageAttempt:
        day = node.name.partition("@")[2]
        parts = {"run_id": run_id, "stage": node.kind, "partition": day, "window": f"{day}T00:00:00Z/P1D"}
        key = idempotency_key(self.card, parts)
        return self.store.open(run_id, node.kind, idempotency_key=key, input_hashes=snapshot, tx=tx)

    @span("kfm.gates", {})
    def _of_entry(self, node: StageNode, upstream: StageBatch | None) -> GateDecision:
        """Return the gates' decision on a stage's input: the upstream's, if known, or a new one."""
        condition = self.card.condition(StageState.PENDING, StageState.RUNNING)
        if upstream is None or upstream.reused or condition is None:
            return decide(of_every_gate((), maker=node.kind), self.card)
        if upstream.decision is not None:
            return upstream.decision
        verdicts = node.gates(upstream.envelopes, of=upstream.state.dataset_id)
        return decide((verdict for verdict in verdicts if verdict.gate in condition.gates), self.card)

    def _succeeded(self, upstream: StageBatch | None, tx: Transaction) -> bool:
        if upstream is None:
            return True
        newest = self.store.newest(upstream.state.run_id, upstream.state.dataset_id, tx=tx)
        # Stages that an earlier release ran have no row.
        return newest.state is StageState.SUCCEEDED if newest else upstream.state.outcome is not Outcome.FAILED

    def _roll_back(self, node: StageNode, failed: StageAttempt, received: StageBatch | None) -> None:
        # A stage rolls back to its upstream's checkpoint; the first stage needs none.
        try:
            with self.database.transaction() as tx:
                has_checkpoint = received is None
                if received is not None:
                    before = self.store.newest(received.state.run_id, received.state.dataset_id, tx=tx)
                    has_checkpoint = before is not None and before.checkpoint_uri is not None
                self._compensate(node, failed, received, has_checkpoint=has_checkpoint, tx=tx)
        except Exception as error:
            _LOG.exception("%s could not be compensated", failed.stage, exc_info=redacted_error(error))
            with self.database.transaction() as tx:
                line = failed.event(AuditKind.COMPENSATION, "failed", {"error": type(error).__name__})
                self.store.audit.append([line], tx=tx)

    def _compensate(
        self,
        node: StageNode,
        failed: StageAttempt,
        received: StageBatch | None,
        *,
        has_checkpoint: bool,
        tx: Transaction,
    ) -> None:
        """Compensate while the claims are held, so that no other run relies on an undone effect."""
        newest = self.store.newest(failed.run_id, failed.stage, tx=tx)
        if newest is None or (newest.attempt, newest.state) != (failed.attempt, failed.state):
            return  # The next attempt has begun, and these effects belong to it.
        if received is not None and node.count_owned(tx) < len(received.envelopes):
            details = {"reason": "its units have ended, or another run holds them"}
            self.store.audit.append([failed.event(AuditKind.COMPENSATION, "left", details)], tx=tx)
            return
        undone = node.compensate(tx=tx)
        lines = [failed.event(AuditKind.COMPENSATION, "done", undone or {})]
        if may_roll_back(self.card, has_checkpoint=has_checkpoint, do_compensate=undone is not None):
            self.store.move(failed, StageState.ROLLED_BACK, compensation=undone or {}, lines=lines, tx=tx)
        elif undone:
            self.store.audit.append(lines, tx=tx)


def _marked(unit: Envelope, decision: GateDecision) -> Envelope:
    verdict = decision.leaving.get(unit.wal_id)
    if verdict is None or unit.failure is not None:
        return unit
    message = next(finding.what for finding in verdict.findings if finding.wal_id == unit.wal_id)
    issue = Issue(code=GateIssue[verdict.gate].value, severity=Severity.FAILED, message=message)
    return unit.evolve(gate_issues=(*unit.gate_issues, issue))
