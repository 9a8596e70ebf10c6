"""Failures and refusals of stages, with their class (pipeline card, chapter 7, section IV).

Belongs here: the errors, and the classification of any error. Does not belong here: the consequences (`lifecycle.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from botocore.exceptions import BotoCoreError
from obstore.exceptions import BaseError
from sqlalchemy.exc import DBAPIError

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.errors import ConfigurationError, DependencyUnavailableError, ExitCode, KfmError, StoreAccessError
from kfm_dagster.redaction import error_text
from kfm_dagster.stages.audit import AuditEvent, AuditKind
from kfm_dagster.stages.card import ErrorClass
from kfm_dagster.stages.machine import GateDecision, gate_events
from kfm_dagster.stages.store import StageAttempt, StageMoveError
from kfm_dagster.storage.refusal import refusal_of


class StageRefusedError(KfmError):
    """The pipeline card does not let a stage continue.

    `error_class` is the reason, `decision` the gates' decision.
    """

    exit_code = ExitCode.REFUSED
    error_class: ErrorClass
    decision: GateDecision | None = None

    def audit_events(self, attempt: StageAttempt) -> Sequence[AuditEvent]:
        """Return the audit line of the refusal: a stop, named by the error class."""
        return [attempt.event(AuditKind.STOP, self.error_class.value, {"reason": str(self.observed)})]


class UnlockedClockError(StageRefusedError):
    """The clock is not accurate enough for writing."""

    error_class = ErrorClass.E_SYNC


class StageStoppedError(StageRefusedError):
    """Gates, or an upstream that has not succeeded, stop a stage."""

    def __init__(self, *, stage: str, decision: GateDecision, why: str) -> None:
        self.error_class = decision.error_class
        self.decision = decision
        first = next(iter(decision.failing), None)
        super().__init__(
            f"{stage} {why}",
            observed="its upstream has not succeeded" if first is None else f"{first.gate}: {first.observed}",
            expected="deps_succeeded, a condition of state_machine.yaml" if first is None else first.expected,
            next_step="see why the upstream failed (kfm runs show)"
            if first is None
            else "correct the input, the contract or the card (KFM_CONFIGS_DIR)",
        )

    def audit_events(self, attempt: StageAttempt) -> Sequence[AuditEvent]:
        """Return a line per evaluated gate and stop; one line if the upstream has not succeeded."""
        if self.decision is None or not self.decision.failing:
            return [attempt.event(AuditKind.STOP, "deps_succeeded", {"reason": str(self.observed)})]
        return list(gate_events(attempt, self.decision))


class RolledBackError(StageRefusedError):
    """The stages of a rolled-back run are refused, because they would use the run's old inputs."""

    error_class = ErrorClass.E_INPUT

    def __init__(self, *, stage: str, run_id: str, by: str) -> None:
        super().__init__(
            f"{stage} was rolled back in this run",
            observed=f"run {run_id}, by {by}",
            expected="a new run",
            next_step="start a run, or wait for the sensor: the units are pending in the ledger",
        )


class StageFailedError(KfmError):
    """A stage failed as a whole. `decision`: the gates' decision, if gates failed the stage."""

    def __init__(self, *, dataset_id: str, cause: BaseException) -> None:
        self.dataset_id = dataset_id
        self.cause = cause
        self.error_class = classify(cause)
        self.decision = cause.decision if isinstance(cause, StageRefusedError) else None
        if isinstance(cause, DependencyUnavailableError):
            super().__init__(
                f"{dataset_id}: {cause.what}",
                observed=cause.observed,
                expected=cause.expected,
                next_step=f"{cause.next_step or 'see why'}; the run's claims are released automatically",
            )
            return
        super().__init__(
            f"{dataset_id} failed with {self.error_class}",
            observed=error_text(cause),
            next_step="see the run's log; the run's claims are released automatically",
        )


def classify(error: BaseException) -> ErrorClass:
    """Return the class of an error: that of the card's refusal, wrong input, or internal.

    A store's refusal and a missing bucket are wrong input, because a person has to act; another attempt cannot help.
    """
    if isinstance(error, (StageRefusedError, StageFailedError)):
        return error.error_class
    wrong_input = isinstance(error, (ConfigurationError, StageMoveError, StoreAccessError))
    return ErrorClass.E_INPUT if wrong_input else ErrorClass.E_INTERNAL


def may_be_of_a_unit(error: BaseException) -> bool:
    """Return whether one unit can have caused the error; refusals and outages have other causes."""
    cause = error.cause if isinstance(error, StageFailedError) else error
    if isinstance(cause, DBAPIError):
        return refusal_of(cause) is not None
    return not isinstance(cause, (KfmError, BaseError, BotoCoreError, OSError))


def at_fault(error: BaseException, units: Collection[WalId]) -> frozenset[WalId]:
    """Return the units at fault: the units that gates name; for other errors, none or all.

    None: the cause is another process, an earlier rollback or an earlier stage. All: any other error, or a gate finds a
    fault of the whole batch.
    """
    cause = error.cause if isinstance(error, StageFailedError) else error
    if isinstance(cause, (StageMoveError, RolledBackError)):
        return frozenset()
    if isinstance(cause, StageStoppedError) and cause.decision is not None:
        failing = cause.decision.failing
        if not any(verdict.of_batch for verdict in failing):
            return frozenset(wal_id for verdict in failing for wal_id in verdict.units).intersection(units)
    return frozenset(units)
