"""What the audit tells of verdicts. Does not belong here: the chain of lines (`audit.py`), or the rules (`gates/`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kfm_dagster.stages.audit import AuditEvent, AuditKind
from kfm_dagster.stages.card import OnFailure
from kfm_dagster.stages.gates.verdict import STOPS, Verdict
from kfm_dagster.stages.machine import Judgement
from kfm_dagster.stages.store import StageAttempt

UNITS_NAMED = 100
"""Units at fault that a line of audit names; it counts them all."""


def told(attempt: StageAttempt, judgement: Judgement) -> Iterable[AuditEvent]:
    """Yield the lines of audit about verdicts: one per gate that applies, one per stop."""
    for verdict in judgement.verdicts:
        if verdict.applies:
            yield attempt.tells(AuditKind.GATE, verdict.gate.value, _details(verdict, judgement))
    for verdict in judgement.verdicts:
        if verdict.gate in STOPS and not verdict.passed and verdict.gate not in judgement.restricted:
            scope = "batch" if STOPS[verdict.gate] in judgement.stops else "units"
            stop = {"gate": verdict.gate.value, "scope": scope, "units": len(verdict.units)}
            yield attempt.tells(AuditKind.STOP, STOPS[verdict.gate].value, stop)


def _details(verdict: Verdict, judgement: Judgement) -> dict[str, Any]:
    outcome = "passed"
    if verdict.gate in judgement.restricted:
        outcome = OnFailure.RESTRICT.value
    elif not verdict.passed:
        outcome = OnFailure.FAIL_UNITS.value if verdict.gate in judgement.passed else OnFailure.STOP.value
    return {
        "rule": verdict.rule,
        "observed": verdict.observed,
        "expected": verdict.expected,
        "outcome": outcome,
        "units_at_fault": len(verdict.units),
        "units": sorted(verdict.units)[:UNITS_NAMED],
    }
