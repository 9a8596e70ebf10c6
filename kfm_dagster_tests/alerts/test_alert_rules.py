"""On recorded events, each rule fires at its threshold and not below the threshold, on both databases."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import timedelta

import pytest

from kfm_dagster.alerts.evaluator import AlertEvaluator
from kfm_dagster.alerts.plan import AlertPlan, AlertRule
from kfm_dagster.stages.audit import AuditKind
from kfm_dagster.stages.card import StageState
from kfm_dagster.stages.gates.verdict import Gate
from kfm_dagster.telemetry.clock.reading import ClockState
from kfm_dagster_tests.alerts.recorded import NOON, STAGE, Clock, Record

pytestmark = pytest.mark.clause("PCS-18")

FAILED, ROLLED_BACK, SUCCEEDED = StageState.FAILED, StageState.ROLLED_BACK, StageState.SUCCEEDED
OTHER = "goes-abi.stac_register"


def flaps(record: Record, times: int) -> None:
    """Record this many attempts of a stage after a failure, without events of other rules."""
    for number in range(times):
        record.stage(FAILED if number % 2 else ROLLED_BACK, run=f"r{number}")
    record.stage(SUCCEEDED, run="last")


def breaks(record: Record, times: int) -> None:
    """Record failures of stages that do not run again; only another dataset's stage succeeds."""
    for number in range(times):
        record.stage(FAILED, stage=f"{STAGE}{number}", run=f"r{number}")
        record.stage(SUCCEEDED, stage=OTHER, run=f"r{number}")


def retries(record: Record, times: int, after: str = "failed") -> None:
    for number in range(times):
        record.line(AuditKind.RETRY, "attempt 2", run=f"r{number % 3}", after=after, interval_seconds=1.0)


def gates(record: Record, gate: str, times: int, outcome: str = "fail_units", stage: str = STAGE) -> None:
    for number in range(times):
        record.gate(gate, outcome, stage=stage, run=f"r{number}")


def all_gates(record: Record, times: int, outcome: str, but: Collection[str] = ()) -> None:
    for gate in sorted({*Gate} - {*but}):
        gates(record, gate, times, outcome)


def many_stages(record: Record) -> None:
    for number in range(20):
        gates(record, "G6", 1, stage=f"d{number}.settle")


def waits(record: Record) -> None:
    """Record three attempts after a failure, and a fourth attempt that has not begun."""
    record.stage(FAILED, FAILED, FAILED, FAILED, StageState.PENDING)


def unlocked_but_calibrated(record: Record) -> None:
    record.clock(ClockState.UNKNOWN, 0.2, source="date:s3.example")
    record.clock(ClockState.UNLOCKED, None)


def unlocked_and_calibrated_elsewhere(record: Record) -> None:
    record.clock(ClockState.UNKNOWN, 0.2, source="date:s3.example", name="another machine")
    record.clock(ClockState.UNLOCKED, None)


PATH = "nexrad-l2.path_arrival"
TRIPS: dict[str, tuple[Callable[[Record], None], AlertRule, str, int]] = {
    "four attempts after failures": (lambda r: flaps(r, 4), AlertRule.STATE_FLAPPING, STAGE, 4),
    "retries of every stage together": (lambda r: retries(r, 20), AlertRule.RETRY_STORM, "all stages", 20),
    "retries of a refused stage": (lambda r: retries(r, 20, after="pending"), AlertRule.RETRY_STORM, "all stages", 20),
    "a unit that fails G7": (lambda r: gates(r, "G7", 1, stage=PATH), AlertRule.COVARIANCE, f"{PATH} G7", 1),
    "a stage that G7 stops": (lambda r: gates(r, "G7", 1, "stop"), AlertRule.COVARIANCE, f"{STAGE} G7", 1),
    "units that fail G3": (lambda r: gates(r, "G3", 2, stage=PATH), AlertRule.PATH_DESYNC, f"{PATH} G3", 2),
    "a stage refused for its clock": (lambda r: r.line(AuditKind.STOP, "E_SYNC"), AlertRule.UNLOCK, "clock", 1),
    "a stage restricted for its clock": (
        lambda r: r.stage(SUCCEEDED, restricted=["E_SYNC", "G5"]), AlertRule.UNLOCK, "clock", 1
    ),
    "a clock that is wrong": (
        lambda r: r.clock(ClockState.UNKNOWN, -1.2, source="date:x"), AlertRule.UNLOCK, "clock", 1
    ),
    "a clock out of sync": (lambda r: r.clock(ClockState.UNLOCKED, None), AlertRule.UNLOCK, "clock", 1),
    "a calibration of another clock": (unlocked_and_calibrated_elsewhere, AlertRule.UNLOCK, "clock", 1),
    "a gate that stops": (lambda r: gates(r, "G2", 10, "stop"), AlertRule.GATE_BREACH, f"{STAGE} G2", 10),
    "a gate that restricts": (lambda r: gates(r, "G5", 11, "restrict"), AlertRule.GATE_BREACH, f"{STAGE} G5", 11),
    "a diverged replay": (lambda r: r.line(AuditKind.REPLAY, "diverged"), AlertRule.REPLAY_DIVERGENCE, "run run", 1),
}  # fmt: skip
QUIET: dict[str, Callable[[Record], None]] = {
    "three attempts after failures": lambda r: flaps(r, 3),
    "failures of many stages": lambda r: breaks(r, 6),
    "an attempt that has not begun": waits,
    "nineteen retries": lambda r: retries(r, 19),
    "retries of stages that had succeeded": lambda r: retries(r, 30, after="succeeded"),
    "gates that pass": lambda r: all_gates(r, 12, "passed"),
    "nine breaches of each gate": lambda r: all_gates(r, 9, "stop", but={"G3", "G7"}),
    "breaches of many stages": many_stages,
    "a stop for another reason": lambda r: r.line(AuditKind.STOP, "S3"),
    "a restriction for another reason": lambda r: r.stage(SUCCEEDED, restricted=["G5"]),
    "a clock within its limit": lambda r: r.clock(ClockState.LOCKED, 0.8),
    "a clock that is possibly wrong": lambda r: r.clock(ClockState.UNKNOWN, 1.05, source="date:x"),
    "a clock out of sync that is calibrated": unlocked_but_calibrated,
    "a replay without a difference": lambda r: r.line(AuditKind.REPLAY, "compared"),
}


@pytest.mark.parametrize("case", TRIPS)
def test_a_rule_fires_at_its_threshold(
    case: str, evaluator: AlertEvaluator, record: Record, now: Clock, plan: AlertPlan
) -> None:
    record_events, rule, subject, observed = TRIPS[case]
    record_events(record)
    now.at = record.at
    evaluator.evaluate()
    [alert] = evaluator.store.listed()
    assert (alert.rule, alert.subject, alert.observed) == (rule, subject, observed)
    assert (alert.level, alert.opened_at, alert.notifications) == (plan.rules[rule].level, now.at, 1)
    assert alert.run_id or alert.place in {"kernel", "date:x"}


@pytest.mark.parametrize("case", QUIET)
def test_no_rule_fires_below_its_threshold_or_on_events_of_other_kinds(
    case: str, evaluator: AlertEvaluator, record: Record, now: Clock
) -> None:
    QUIET[case](record)
    now.at = record.at
    evaluator.evaluate()
    assert evaluator.store.listed() == []


def test_only_events_within_a_rule_s_window_count(evaluator: AlertEvaluator, record: Record, now: Clock) -> None:
    for minutes in (61, 59, 30, 10):
        record.at = NOON - timedelta(minutes=minutes)
        gates(record, "G6", 3)
    evaluator.evaluate()
    assert evaluator.store.listed() == []
    # An event of a machine whose clock is ahead counts once its time is reached.
    record.at = NOON + timedelta(seconds=5)
    gates(record, "G6", 1)
    evaluator.evaluate()
    assert evaluator.store.listed() == []
    now.passes(seconds=5)
    evaluator.evaluate()
    [alert] = evaluator.store.listed()
    assert (alert.observed, alert.last_event_at) == (10, record.at)
