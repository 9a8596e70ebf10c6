"""The card's decisions: a stage's start and end, removed units, restrictions, audit lines.

Pure. Belongs here: the rules of the Pipeline Card Template, chapter 7, sections III and IX. Does not belong here: the
stored states (`store.py`), the audit's chain (`audit.py`), or the rules of the gates (`gates/`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.contracts.issues import GateIssue
from kfm_dagster.stages.audit import AuditEvent, AuditKind
from kfm_dagster.stages.card import ErrorClass, StageState, StateMachine
from kfm_dagster.stages.gates.verdict import STOPS, Gate, OnFailure, Stop, Verdict
from kfm_dagster.stages.store import StageAttempt

_CLASSES: Mapping[Gate, ErrorClass] = {Gate.G1: ErrorClass.E_INPUT, Gate.G4: ErrorClass.E_DIM, Gate.G7: ErrorClass.E_UQ}
"""The error class of a gate's failure; gates that are not listed have E_GATE."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GateDecision:
    """The card's decision on a stage's verdicts."""

    verdicts: tuple[Verdict, ...]
    passed: frozenset[Gate]
    """Gates without findings, gates whose units at fault were removed, and the restricted gates."""
    stops: frozenset[Stop]
    leaving: Mapping[WalId, Verdict] = field(default_factory=dict)
    """By unit, the verdict of the first gate that removes the unit from the chain."""
    restricted: frozenset[Gate] = frozenset()
    """Failed gates that the card lets pass; the output is then marked [Restricted]."""

    @property
    def failing(self) -> tuple[Verdict, ...]:
        """The verdicts that fail the stage as a whole."""
        return tuple(verdict for verdict in self.verdicts if verdict.gate not in self.passed)

    @property
    def error_class(self) -> ErrorClass:
        """The class of the stage's failure."""
        return next((_CLASSES.get(verdict.gate, ErrorClass.E_GATE) for verdict in self.failing), ErrorClass.E_GATE)


def review_codes(card: StateMachine) -> frozenset[str]:
    """Return the codes of the gates whose removed units are quarantined without a retry."""
    return frozenset(
        GateIssue[gate].value for gate in Gate if _CLASSES.get(gate, ErrorClass.E_GATE) in card.human_review
    )


def decide(
    verdicts: Iterable[Verdict], card: StateMachine, *, units: Collection[WalId] = (), whole: bool = False
) -> GateDecision:
    """Apply the card to verdicts over `units`, the units in the chain.

    If there are several units and a gate with a stop finds fault with each of them, the batch is at fault, and the stop
    is triggered (chapter 7, sections III and IX). `whole`: the node has effects outside the database, so no single unit
    can be removed.
    """
    evaluated = tuple(verdicts)
    passed: set[Gate] = set()
    stops: set[Stop] = set()
    restricted: set[Gate] = set()
    leaving: dict[WalId, Verdict] = {}
    for verdict in evaluated:
        action = card.gates.on_failure(verdict.gate)
        if verdict.passed:
            passed.add(verdict.gate)
        elif action is OnFailure.RESTRICT:
            passed.add(verdict.gate)
            restricted.add(verdict.gate)
        elif action is OnFailure.FAIL_UNITS and not (verdict.of_batch or whole or _shared(verdict, units)):
            passed.add(verdict.gate)
            for wal_id in verdict.units:
                leaving.setdefault(wal_id, verdict)
        elif verdict.gate in STOPS:
            stops.add(STOPS[verdict.gate])
    return GateDecision(
        verdicts=evaluated,
        passed=frozenset(passed),
        stops=frozenset(stops),
        leaving=leaving,
        restricted=frozenset(restricted),
    )


def _shared(verdict: Verdict, units: Collection[WalId]) -> bool:
    return verdict.gate in STOPS and len(units) > 1 and verdict.units.issuperset(units)


def may_start(decision: GateDecision, card: StateMachine, *, deps_succeeded: bool) -> bool:
    """Return whether pending > running is allowed."""
    condition = card.condition(StageState.PENDING, StageState.RUNNING)
    facts = {*decision.passed, *({"deps_succeeded"} if deps_succeeded else ())}
    return condition is not None and condition.holds(facts)


def ending(decision: GateDecision, card: StateMachine) -> StageState:
    """Return a running stage's final state: failed if the card demands it or forbids success."""
    facts = {*decision.passed, *decision.stops}
    failed = card.condition(StageState.RUNNING, StageState.FAILED)
    succeeded = card.condition(StageState.RUNNING, StageState.SUCCEEDED)
    if failed is not None and failed.holds(facts):
        return StageState.FAILED
    return StageState.SUCCEEDED if succeeded is not None and succeeded.holds(facts) else StageState.FAILED


def may_roll_back(card: StateMachine, *, has_checkpoint: bool, do_compensate: bool) -> bool:
    """Return whether failed > rolled_back is allowed."""
    condition = card.condition(StageState.FAILED, StageState.ROLLED_BACK)
    words = {"has_checkpoint": has_checkpoint, "do_compensate": do_compensate}
    return condition is not None and condition.holds({word for word, true in words.items() if true})


def idempotency_key(card: StateMachine, parts: Mapping[str, str]) -> str:
    """Return the SHA-256, in hex, of lines `name=value`, with the names and order of the card."""
    text = "\n".join(f"{name}={parts[name]}" for name in card.key_parts)
    return hashlib.sha256(text.encode()).hexdigest()


def gate_events(attempt: StageAttempt, decision: GateDecision) -> Iterable[AuditEvent]:
    """Yield the audit lines of verdicts: a line per applicable gate and per stop of the stage."""
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
        "units": sorted(verdict.units)[:100],  # the count includes all of them
        **({"figures": dict(verdict.figures)} if verdict.figures else {}),
    }
