"""Audit lines of verdicts. Does not belong here: the chain (`audit.py`), rules (`gates/`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kfm_dagster.stages.audit import AuditEvent, AuditKind
from kfm_dagster.stages.gates.verdict import STOPS, OnFailure, Verdict
from kfm_dagster.stages.machine import GateDecision
from kfm_dagster.stages.store import StageAttempt

UNITS_NAMED = 100
"""Units at fault that an audit line names; it counts them all."""


def gate_events(attempt: StageAttempt, decision: GateDecision) -> Iterable[AuditEvent]:
    """Yield the audit lines of verdicts: one per applicable gate, one per stop of the stage."""
    for verdict in decision.verdicts:
        if verdict.applies:
            yield attempt.event(AuditKind.GATE, verdict.gate.value, _details(verdict, decision))
    for verdict in decision.verdicts:
        stop = STOPS.get(verdict.gate)
        if stop in decision.stops and verdict.gate not in decision.passed:
            yield attempt.event(AuditKind.STOP, stop.value, {"gate": verdict.gate.value, "units": len(verdict.units)})


def _details(verdict: Verdict, decision: GateDecision) -> dict[str, Any]:
    outcome = "passed"
    if verdict.gate in decision.restricted:
        outcome = OnFailure.RESTRICT.value
    elif not verdict.passed:
        outcome = OnFailure.FAIL_UNITS.value if verdict.gate in decision.passed else OnFailure.STOP.value
    return {
        "rule": verdict.rule,
        "observed": verdict.observed,
        "expected": verdict.expected,
        "outcome": outcome,
        "units_at_fault": len(verdict.units),
        "units": sorted(verdict.units)[:UNITS_NAMED],
        **({"figures": dict(verdict.figures)} if verdict.figures else {}),
    }
