"""The effects of verdicts under the shipped card and under other cards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.stages.card import Card, StageState
from kfm_dagster.stages.gates.verdict import Finding, Gate, Stop, Verdict
from kfm_dagster.stages.machine import decide, ending, idempotency_key, may_start
from kfm_dagster_tests.stages.fake_node import machine_with

CARD = Card.load()
UNIT = WalId("u1")


def verdict(gate: Gate, *findings: Finding) -> Verdict:
    return Verdict(gate=gate, rule="r", observed="o", expected="e", findings=findings)


def verdicts(*failing: Verdict) -> Iterable[Verdict]:
    named = {verdict_.gate: verdict_ for verdict_ in failing}
    return [named.get(gate, verdict(gate)) for gate in Gate]


@pytest.mark.clause("PCS-02", "PCS-20")
@pytest.mark.parametrize(("gate", "stop"), [(Gate.G3, Stop.S3), (Gate.G4, Stop.S1), (Gate.G7, Stop.S4)])
def test_under_the_shipped_card_a_fault_of_all_units_stops_the_stage(gate: Gate, stop: Stop) -> None:
    second = WalId("u2")
    shared = verdict(gate, *(Finding(wal_id=unit, what="x") for unit in (UNIT, second)))
    judged = decide(verdicts(shared), CARD.machine, units={UNIT, second})
    assert (judged.stops, dict(judged.leaving), ending(judged, CARD.machine)) == ({stop}, {}, StageState.FAILED)
    # Faulty units are dropped instead if another unit is sound, the batch has one unit, or the gate has no stop.
    for failing, units in (
        (shared, {UNIT, second, WalId("u3")}),
        (verdict(gate, Finding(wal_id=UNIT, what="x")), {UNIT}),
    ):
        left = decide(verdicts(failing), CARD.machine, units=units)
        assert (left.stops, ending(left, CARD.machine)) == (set(), StageState.SUCCEEDED)
        assert set(left.leaving) == failing.units
    incomplete = decide(verdicts(replace(shared, gate=Gate.G1)), CARD.machine, units={UNIT, second})
    assert set(incomplete.leaving) == {UNIT, second}
    mixed = decide(verdicts(verdict(Gate.G8, Finding(wal_id=UNIT, what="x"), Finding(what="y"))), CARD.machine)
    assert ending(mixed, CARD.machine) is StageState.FAILED


@pytest.mark.clause("PCS-14")
def test_the_same_verdicts_have_other_effects_under_another_card() -> None:
    late = verdicts(verdict(Gate.G5, Finding(what="late")))
    stops = machine_with(("G5: {on_failure: restrict}", "G5: {on_failure: stop}"))
    blind_to_s2 = machine_with(('when: "any(S1..S5)"', 'when: "any(S3..S5)"'))
    assert ending(decide(late, stops), stops) is StageState.FAILED
    assert ending(decide(late, CARD.machine), CARD.machine) is StageState.SUCCEEDED
    assert decide(late, stops).stops == {Stop.S2}
    lax = ('when: "G1..G8 && !S1..S5"', 'when: "G1..G4"')
    both = ('when: "any(S1..S5)"', 'when: "S1 && S2"')
    assert ending(decide(late, stops), blind_to_s2) is StageState.FAILED
    assert ending(decide(late, stops), machine_with(lax, both)) is StageState.SUCCEEDED
    assert {ending(decide(late, stops), machine_with(change)) for change in (lax, both)} == {StageState.FAILED}
    lenient = machine_with(('when: "deps_succeeded && G1..G3"', 'when: "G1"'))
    assert may_start(decide(verdicts(verdict(Gate.G2, Finding(what="x"))), lenient), lenient, deps_succeeded=False)


@pytest.mark.clause("PCS-05")
def test_the_idempotency_key_has_exactly_the_parts_that_the_card_names() -> None:
    parts = {"run_id": "r", "stage": "s", "partition": "2025-04-02", "window": "w"}
    key = idempotency_key(CARD.machine, parts)
    assert key == idempotency_key(CARD.machine, {**parts, "stage": "other"})
    assert (
        len({key, *(idempotency_key(CARD.machine, {**parts, n: "x"}) for n in ("run_id", "partition", "window"))}) == 4
    )
    with_stage = machine_with(("run_id+partition+window", "run_id+stage"))
    assert idempotency_key(with_stage, parts) == idempotency_key(with_stage, {**parts, "window": "x"})
    assert idempotency_key(with_stage, parts) != idempotency_key(with_stage, {**parts, "stage": "x"})
    # A run id that contains the line of the next part is not mistaken for both parts.
    assert idempotency_key(CARD.machine, {**parts, "run_id": "r\npartition=2025-04-02"}) != key


@pytest.mark.clause("PCS-02")
def test_a_unit_that_several_gates_reject_has_the_verdict_of_the_first() -> None:
    first, second = (verdict(gate, Finding(what=gate.value, wal_id=UNIT)) for gate in (Gate.G1, Gate.G8))
    assert dict(decide(verdicts(first, second), CARD.machine).leaving) == {UNIT: first}
