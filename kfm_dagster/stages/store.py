"""Stages in the database: a row per attempt of a run's stage, changed with an audit line.

Belongs here: opening, moving and reading attempts. Does not belong here: when a stage moves (`machine.py`), or the
guards in the database (`sql/schema`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any

from kfm_dagster.errors import ExitCode, KfmError
from kfm_dagster.stages.audit import AuditEvent, AuditKind, AuditLog
from kfm_dagster.stages.card import POSSIBLE, ErrorClass, StageState
from kfm_dagster.storage.database import Database, Transaction


class StageMoveError(KfmError):
    """The move of a stage is not possible."""

    exit_code = ExitCode.REFUSED


@dataclass(frozen=True, kw_only=True, slots=True)
class StageAttempt:
    """An attempt of a stage; `restricted` has the reasons why its output is [Restricted]."""

    run_id: str
    stage: str
    attempt: int
    state: StageState
    idempotency_key: str
    input_hashes: Sequence[str]
    opened_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    error_class: ErrorClass | None = None
    restricted: Sequence[str] = ()
    checkpoint_uri: str | None = None
    output_sha256: str | None = None
    compensation: Mapping[str, Any] | None = None

    def event(self, kind: AuditKind, event: str, details: Mapping[str, Any] | None = None) -> AuditEvent:
        """Return an audit line of this attempt."""
        return AuditEvent(
            run_id=self.run_id,
            stage=self.stage,
            attempt=self.attempt,
            kind=kind,
            event=event,
            details=details or {},
        )


class StageStore:
    """Reads and moves attempts."""

    def __init__(self, database: Database, *, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._clock = clock
        self.audit = AuditLog(database, clock=clock)

    def newest(self, run_id: str, stage: str, *, tx: Transaction) -> StageAttempt | None:
        """Return the newest attempt of a stage, or None before the first."""
        return max(self.of_run(run_id, stage=stage, tx=tx), key=attrgetter("attempt"), default=None)

    def of_run(self, run_id: str, *, stage: str | None = None, tx: Transaction) -> list[StageAttempt]:
        """Return every attempt of a run's stages, or of a single stage, in the order of opening."""
        return tx.rows(StageAttempt, "stages.of_run", run_id=run_id, stage=stage)

    def since(self, moment: datetime, *, tx: Transaction) -> list[StageAttempt]:
        """Return every attempt opened since `moment`, oldest first."""
        return tx.rows(StageAttempt, "stages.opened_since", since=moment)

    def unfinished(self, run_ids: Iterable[str], *, limit: int, tx: Transaction) -> list[StageAttempt]:
        """Return the unfinished attempts of these runs, oldest first."""
        names = sorted(set(run_ids))
        return tx.rows(StageAttempt, "stages.unfinished", run_ids=names, limit=limit) if names else []

    def unfinished_runs(self) -> list[str]:
        """Return the runs with an unfinished attempt."""
        with self._database.snapshot() as view:
            return list(view.run("stages.unfinished_runs").scalars())

    def begun_runs(self, run_ids: Collection[str]) -> set[str]:
        """Return the runs with a succeeded stage; their units are claimed, and perhaps settled."""
        with self._database.snapshot() as view:
            return set(view.run("stages.begun_runs", runs=sorted(run_ids)).scalars()) if run_ids else set()

    def open(
        self, run_id: str, stage: str, *, idempotency_key: str, input_hashes: Sequence[str], tx: Transaction
    ) -> StageAttempt:
        """Open the next attempt, pending; first mark a dead worker's running attempt as failed.

        If the newest attempt was refused, it is returned again, with an audit line about the retry.

        Raises StageMoveError if the previous attempt has another key, or if it did not succeed and has other inputs.
        """
        before = self.newest(run_id, stage, tx=tx)
        if before is not None and before.state is StageState.RUNNING:
            details = {"reason": "its worker died, or another attempt replaced it"}
            before = self.move(before, StageState.FAILED, error_class=ErrorClass.E_INTERNAL, details=details, tx=tx)
        if before is not None:
            _refuse_other(before, idempotency_key, input_hashes)
            if before.state is StageState.PENDING:
                # A pending attempt was refused, because permitted attempts are opened and started in one transaction.
                self._audit_retry(before, after=before.state, since=self._refused_at(before, tx), tx=tx)
                return before
        [opened] = tx.rows(
            StageAttempt,
            "stages.open",
            run_id=run_id,
            stage=stage,
            attempt=1 if before is None else before.attempt + 1,
            idempotency_key=idempotency_key,
            input_hashes=list(input_hashes),
            at=self._clock(),
        )
        if before is not None:
            self._audit_retry(opened, after=before.state, since=before.ended_at or before.opened_at, tx=tx)
        return opened

    def _audit_retry(self, attempt: StageAttempt, *, after: StageState, since: datetime, tx: Transaction) -> None:
        details = {"after": after.value, "interval_seconds": (self._clock() - since).total_seconds()}
        self.audit.append([attempt.event(AuditKind.RETRY, f"attempt {attempt.attempt}", details)], tx=tx)

    def _refused_at(self, attempt: StageAttempt, tx: Transaction) -> datetime:
        rows = tx.run("stages.audit_of_stage", run_id=attempt.run_id, stage=attempt.stage).all()
        return max((row.at for row in rows if row.attempt == attempt.attempt), default=attempt.opened_at)

    def move(
        self,
        attempt: StageAttempt,
        to: StageState,
        *,
        error_class: ErrorClass | None = None,
        restricted: Iterable[str] | None = None,
        checkpoint_uri: str | None = None,
        output_sha256: str | None = None,
        compensation: Mapping[str, Any] | None = None,
        details: Mapping[str, Any] | None = None,
        lines: Iterable[AuditEvent] = (),
        tx: Transaction,
    ) -> StageAttempt:
        """Move an attempt; append `lines` to the audit, and then the line of the move.

        Raises StageMoveError for an impossible move, and if another process has moved the attempt meanwhile.
        """
        if (attempt.state, to) not in POSSIBLE:
            raise StageMoveError("the stage cannot make this move", observed=f"{attempt.state} > {to}")
        reasons = None if restricted is None else [str(name) for name in restricted]
        members = {**(details or {}), **({"error_class": error_class.value} if error_class else {})}
        if reasons:
            members["restricted"] = reasons
        move = attempt.event(AuditKind.TRANSITION, f"{attempt.state.value}>{to.value}", members)
        self.audit.append([*lines, move], tx=tx)
        moved = tx.row(
            StageAttempt,
            "stages.move",
            run_id=attempt.run_id,
            stage=attempt.stage,
            attempt=attempt.attempt,
            origin=attempt.state.value,
            state=to.value,
            at=self._clock(),
            error_class=error_class.value if error_class else None,
            restricted=reasons,
            checkpoint_uri=checkpoint_uri,
            output_sha256=output_sha256,
            compensation=compensation,
        )
        if moved is None:
            raise StageMoveError(
                "the attempt has left its state",
                observed=f"attempt {attempt.attempt} of {attempt.stage} in run {attempt.run_id}",
                expected=attempt.state.value,
                next_step="none: another attempt has taken over",
            )
        return moved


def _refuse_other(before: StageAttempt, key: str, input_hashes: Sequence[str]) -> None:
    same_inputs = before.state is StageState.SUCCEEDED or list(before.input_hashes) == list(input_hashes)
    if before.idempotency_key == key and same_inputs:
        return
    difference = "other inputs" if before.idempotency_key == key else "another idempotency key"
    raise StageMoveError(
        f"a retry has {difference} than the attempt that failed",
        observed=f"attempt {before.attempt + 1} of {before.stage} in run {before.run_id}",
        expected="the key and the inputs of the attempt before it",
        next_step="start a new run, which reads the present inputs",
    )
