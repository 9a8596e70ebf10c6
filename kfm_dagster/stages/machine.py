"""What the pipeline card makes of verdicts: may a stage start, how does it end, which units leave, what is restricted.

Pure. Belongs here: the rules of chapter 7, sections III and IX. Does not belong here: where states are kept
(`store.py`), or how a gate judges (`gates/`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.contracts.issues import GateIssue
from kfm_dagster.stages.card import ErrorClass, StageState, StateMachine
from kfm_dagster.stages.gates.verdict import STOPS, Gate, OnFailure, Stop, Verdict

_CLASSES: Mapping[Gate, ErrorClass] = {Gate.G1: ErrorClass.E_INPUT, Gate.G4: ErrorClass.E_DIM, Gate.G7: ErrorClass.E_UQ}
"""The class of a gate's failure; of every other gate it is E_GATE."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GateDecision:
    """What a stage's verdicts come to under the card."""

    verdicts: tuple[Verdict, ...]
    passed: frozenset[Gate]
    """Gates that the stage has passed: nothing was found, the units at fault left, or the degraded path was taken."""
    stops: frozenset[Stop]
    leaving: Mapping[WalId, Verdict] = field(default_factory=dict)
    """Unit > the first gate that makes it leave the chain."""
    restricted: frozenset[Gate] = frozenset()
    """Gates whose degraded path was taken: the output is [Restricted]."""

    @property
    def failing(self) -> tuple[Verdict, ...]:
        """The verdicts that fail the stage as a whole."""
        return tuple(verdict for verdict in self.verdicts if verdict.gate not in self.passed)

    @property
    def error_class(self) -> ErrorClass:
        """The class of what fails the stage."""
        return next((_CLASSES.get(verdict.gate, ErrorClass.E_GATE) for verdict in self.failing), ErrorClass.E_GATE)


def review_codes(card: StateMachine) -> frozenset[str]:
    """Return the codes of the gates by which a unit that leaves goes to a person at once."""
    return frozenset(
        GateIssue[gate].value for gate in Gate if _CLASSES.get(gate, ErrorClass.E_GATE) in card.human_review
    )


def decide(
    verdicts: Iterable[Verdict], card: StateMachine, *, units: Collection[WalId] = (), whole: bool = False
) -> GateDecision:
    """Weigh verdicts by the card. With `whole` no unit can leave alone, because its effect has left the database.

    units: those in the chain. A fault that all of them share, where they are several, is the batch's: its stop is
    triggered (chapter 7, sections III and IX).
    """
    said = tuple(verdicts)
    passed: set[Gate] = set()
    stops: set[Stop] = set()
    restricted: set[Gate] = set()
    leaving: dict[WalId, Verdict] = {}
    for verdict in said:
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
        verdicts=said,
        passed=frozenset(passed),
        stops=frozenset(stops),
        leaving=leaving,
        restricted=frozenset(restricted),
    )


def _shared(verdict: Verdict, units: Collection[WalId]) -> bool:
    return verdict.gate in STOPS and len(units) > 1 and verdict.units.issuperset(units)


def may_start(decision: GateDecision, card: StateMachine, *, deps_succeeded: bool) -> bool:
    """Tell whether pending > running is allowed."""
    condition = card.condition(StageState.PENDING, StageState.RUNNING)
    facts = {*decision.passed, *({"deps_succeeded"} if deps_succeeded else ())}
    return condition is not None and condition.holds(facts)


def ending(decision: GateDecision, card: StateMachine) -> StageState:
    """Return how a running stage ends: a stop is looked for first, and what may not succeed has failed."""
    facts = {*decision.passed, *decision.stops}
    failed = card.condition(StageState.RUNNING, StageState.FAILED)
    succeeded = card.condition(StageState.RUNNING, StageState.SUCCEEDED)
    if failed is not None and failed.holds(facts):
        return StageState.FAILED
    return StageState.SUCCEEDED if succeeded is not None and succeeded.holds(facts) else StageState.FAILED


def may_roll_back(card: StateMachine, *, has_checkpoint: bool, do_compensate: bool) -> bool:
    """Tell whether failed > rolled_back is allowed."""
    condition = card.condition(StageState.FAILED, StageState.ROLLED_BACK)
    words = {"has_checkpoint": has_checkpoint, "do_compensate": do_compensate}
    return condition is not None and condition.holds({word for word, true in words.items() if true})


def idempotency_key(card: StateMachine, parts: Mapping[str, str]) -> str:
    """Return SHA-256, in hex, of the card's parts in its order, each on a line of its own."""
    text = "\n".join(f"{name}={parts[name]}" for name in card.key_parts)
    return hashlib.sha256(text.encode()).hexdigest()
