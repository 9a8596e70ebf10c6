"""What no attempt cures goes to a person at once, through Dagster: the units at fault, and no others (PCS-23)."""

from __future__ import annotations

from pathlib import Path

import pytest

from kfm_dagster.ledger.cases import CaseState, QuarantineCases
from kfm_dagster.ledger.policy import LedgerCode
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster_tests.integration.chain import put, volumes
from kfm_dagster_tests.integration.face import Face
from kfm_dagster_tests.integration.gating import under
from kfm_dagster_tests.integration.test_day_truth import JOB, PARTITION, beyond_the_pole
from kfm_dagster_tests.integration.test_gate_checks import change_contract
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.one_database

UNITS = 3
STOPS = ("G4: {on_failure: fail_units", "G4: {on_failure: stop")
REVIEW = "human_review: [E_DIM, E_UQ]"


def where_they_are(face: Face) -> dict[str, tuple[str, int, str | None]]:
    """Key > status, attempts and why the record moved last."""
    found = own_tx(face.pipeline.ledger).find(dataset="nexrad-l2")
    return {unit.object_uri.rpartition("/")[2]: (unit.status, unit.attempts, unit.change_reason) for unit in found}


@pytest.mark.clause("PCS-04", "PCS-23")
def test_a_stage_that_does_not_close_sends_its_unit_at_fault_to_a_person_at_once_and_the_others_go_on(
    face: Face, objects: Path
) -> None:
    items = volumes(UNITS)
    put(objects, items)
    at_fault, *others = (item.key.rpartition("/")[2] for item in items)
    under(face.pipeline, *STOPS)
    with beyond_the_pole(at_fault):
        assert not face.execute(JOB, partition=PARTITION, raise_on_error=False).success
    where = where_they_are(face)
    assert where.pop(at_fault) == (Status.QUARANTINED, 1, LedgerCode.NOT_COMPENSABLE)
    assert where == dict.fromkeys(others, (Status.PENDING, 1, "retry"))
    [case] = QuarantineCases(face.pipeline.database, clock=face.pipeline.clock).find(CaseState.OPEN)
    assert case.reason == LedgerCode.NOT_COMPENSABLE
    stopped = own_tx(face.pipeline.ledger).find(status=Status.QUARANTINED)[0].last_error_message
    assert stopped is not None
    assert "E_DIM" in stopped
    # Nothing keeps the next run from what was sound all along.
    assert face.execute(JOB, partition=PARTITION).success
    where = where_they_are(face)
    assert {where[name][0] for name in others} == {Status.SUCCEEDED}
    assert where[at_fault][:2] == (Status.QUARANTINED, 1)


@pytest.mark.clause("PCS-04", "PCS-14", "PCS-23")
def test_a_card_that_calls_it_compensable_lets_every_unit_try_again(face: Face, objects: Path) -> None:
    items = volumes(UNITS)
    put(objects, items)
    under(face.pipeline, *STOPS, (REVIEW, "human_review: [E_UQ]"))
    with beyond_the_pole(items[0].key):
        assert not face.execute(JOB, partition=PARTITION, raise_on_error=False).success
    assert set(where_they_are(face).values()) == {(Status.PENDING, 1, "retry")}


@pytest.mark.clause("PCS-04", "PCS-23")
def test_what_no_unit_alone_is_at_fault_for_sends_the_whole_batch_to_a_person(
    face: Face, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(objects, volumes(UNITS))
    under(face.pipeline, REVIEW, "human_review: [E_DIM, E_GATE]")
    change_contract(face, monkeypatch, citations=[])
    assert not face.execute(JOB, partition=PARTITION, raise_on_error=False).success
    assert set(where_they_are(face).values()) == {(Status.QUARANTINED, 1, LedgerCode.NOT_COMPENSABLE)}
