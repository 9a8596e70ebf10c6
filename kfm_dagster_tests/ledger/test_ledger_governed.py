"""Both databases refuse overrides without a decision, and forged decisions, also in hand-typed SQL."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from kfm_dagster.errors import IllegalTransitionError, RefusedError, UnknownReplayReasonError
from kfm_dagster.governance.log import Decision, GovernanceAction, UnattributedDecisionError
from kfm_dagster.ledger.cases import CaseState, QuarantineCases
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.state_machine import OVERRIDES, Status, explained
from kfm_dagster_tests.databases import every_row
from kfm_dagster_tests.factories import envelope
from kfm_dagster_tests.ledger.bench import JANE, Bench
from kfm_dagster_tests.transactions import own_tx

T = "2025-12-03T12:00:00.000000Z"
LATER = "2025-12-03T13:00:00.000000Z"

# This change back to pending meets every requirement except one: only the decision is missing.
BACK = """
UPDATE nodd_wal_records SET
    status = 'pending', version = version + 1, updated_at = :at, changed_by = 'person',
    change_reason = 'incident', replay_reason = 'incident'
WHERE wal_id = :wal_id
"""
DECIDE = """
INSERT INTO governance_log (
    at, actor, action, dataset, wal_id, record_version, from_status, to_status, reason, change_ref, details,
    proposal_id, approved_by
)
VALUES (
    :at, :actor, :action, 'nexrad-l2', :wal_id, :record_version, :from_status, :to_status, :reason, :change_ref, '{}',
    :proposal_id, :approved_by
)
"""
TERMINAL = ("quarantined", "succeeded")


def decision(record: NoddWalRecord, *, later: int = 0, **changes: Any) -> dict[str, Any]:
    """Return the decision by which a unit leaves its status; `later` is added to the decided version."""
    right = {
        "at": T, "actor": "person", "action": "release", "wal_id": record.wal_id,
        "record_version": record.version + 1 + later,
        "from_status": record.status.value, "to_status": "pending", "reason": "by hand", "change_ref": "CHG-1",
        "proposal_id": None, "approved_by": None,
    }  # fmt: skip
    return right | changes


def type_together(bench: Bench, *statements: tuple[str, Mapping[str, Any]]) -> None:
    """Execute statements in one transaction."""
    with bench.database.engine.begin() as connection:
        for sql, parameters in statements:
            connection.execute(sa.text(sql), {"at": LATER, **parameters})


NOT_ENOUGH: dict[str, list[dict[str, Any]]] = {
    "no decision": [],
    "a decision on a later version": [{"later": 1}],
    "a decision on the current version": [{"later": -1}],
    "a decision from another status": [{"from_status": "failed"}],
    "a decision to another status": [{"to_status": "succeeded"}],
    "a decision on another unit": [{"wal_id": envelope(99).wal_id}],
    "a decision without a change of status": [{"record_version": None, "from_status": None, "to_status": None}],
    "two decisions": [{}, {"actor": "another"}],
}


@pytest.mark.clause("WSM-02", "WSM-16")
@pytest.mark.parametrize("status", TERMINAL)
def test_no_unit_leaves_a_terminal_status_without_a_decision_on_exactly_this_change(bench: Bench, status: str) -> None:
    record = bench.bring_to(status, envelope())
    back = (BACK, {"wal_id": record.wal_id})
    bench.ledger.ensure([envelope(99)])
    before = every_row(bench.database)
    for name, wrong in NOT_ENOUGH.items():
        with pytest.raises(DBAPIError):
            type_together(bench, *((DECIDE, decision(record, **changes)) for changes in wrong), back)
        assert every_row(bench.database) == before, name
    type_together(bench, (DECIDE, decision(record)), back)
    assert bench.ledger.get(record.wal_id).status is Status.PENDING


@pytest.mark.clause("WSM-16")
@pytest.mark.parametrize("status", TERMINAL)
def test_a_decision_without_its_transition_is_refused_at_commit(bench: Bench, status: str) -> None:
    record = bench.bring_to(status, envelope())
    with pytest.raises(DBAPIError, match=r"(?i)foreign key|decision_was_carried_out"):
        type_together(bench, (DECIDE, decision(record)))
    assert [entry.actor for entry in own_tx(bench.ledger.log).entries(action=GovernanceAction.RELEASE)] == []
    # So an unused decision cannot permit a later transition.
    with pytest.raises(IllegalTransitionError, match=f"{record.wal_id}: {status} > pending"), explained():
        type_together(bench, (BACK, {"wal_id": record.wal_id}))


@pytest.mark.clause("WSM-02", "WSM-16")
def test_a_decision_permits_a_terminal_unit_no_transition_except_to_pending(bench: Bench) -> None:
    allowed = {(rule.from_status, rule.to_status) for rule in OVERRIDES}
    assert allowed == {("quarantined", "pending"), ("succeeded", "pending")}
    for number, status in enumerate(TERMINAL):
        record = bench.bring_to(status, envelope(number))
        for to in ("in_progress", "failed", "succeeded", "quarantined"):
            move = BACK.replace("'pending'", f"'{to}'")
            with pytest.raises(DBAPIError, match=f"{status} > {to}"):
                type_together(bench, (DECIDE, decision(record, to_status=to)), (move, {"wal_id": record.wal_id}))


@pytest.mark.clause("WSM-16", "SEC-02")
@pytest.mark.parametrize("status", [Status.QUARANTINED, Status.SUCCEEDED])
def test_an_override_records_actor_reason_and_change_reference(bench: Bench, status: Status) -> None:
    unit = envelope()
    record = bench.bring_to(status, unit)
    versions = {unit.wal_id: record.version}
    action = GovernanceAction.RELEASE if status is Status.QUARANTINED else GovernanceAction.REPEAT
    with pytest.raises(UnattributedDecisionError, match="change reference"):
        bench.ledger.override(versions, from_status=status, action=action, decision=Decision(actor="jane", reason="x"))
    for name, longest in (("actor", 200), ("reason", 1000), ("change_ref", 200)):
        for text in ("", " ", "x" * (longest + 1)):
            with pytest.raises(UnattributedDecisionError):
                Decision(**{"actor": "jane", "reason": "x", "change_ref": "CHG-1", name: text})
    with pytest.raises(UnknownReplayReasonError):
        bench.ledger.override(versions, from_status=status, action=action, decision=JANE, replay_reason="whim")
    # Compare-and-swap: other versions and states are refused.
    for wrong in ({unit.wal_id: record.version + 1}, {unit.wal_id: record.version - 1}, {}):
        assert bench.ledger.override(wrong, from_status=status, action=action, decision=JANE) == frozenset()
    other_status = Status.SUCCEEDED if status is Status.QUARANTINED else Status.QUARANTINED
    assert bench.ledger.override(versions, from_status=other_status, action=action, decision=JANE) == frozenset()
    assert bench.ledger.get(unit.wal_id) == record
    assert bench.ledger.override(versions, from_status=status, action=action, decision=JANE) == {unit.wal_id}
    [entry] = own_tx(bench.ledger.log).entries(action=action)
    assert (entry.wal_id, entry.record_version, entry.from_status, entry.to_status) == (
        unit.wal_id,
        record.version + 1,
        status,
        Status.PENDING,
    )
    assert (entry.at, entry.actor, entry.reason, entry.change_ref) == (
        bench.clock.now,
        "jane",
        "looked at it",
        "CHG-2",
    )


CLOSE_CASE = f"UPDATE quarantine_cases SET state = :state, closed_at = '{LATER}', closing_entry = :entry"


@pytest.mark.clause("BEY-06")
@pytest.mark.parametrize("status", ["succeeded", "quarantined"])
def test_only_a_quarantine_opens_a_case(bench: Bench, status: str) -> None:
    bench.bring_to(status, envelope())
    open_case = "INSERT INTO quarantine_cases (wal_id, quarantined_version, opened_at, reason, state) "
    for version in ("version", "1"):
        with pytest.raises(DBAPIError, match="cases_are_opened_by_the_ledger"):
            bench.type_by_hand(f"{open_case} SELECT wal_id, {version}, '{T}', 'x', 'open' FROM nodd_wal_records")


@pytest.mark.clause("BEY-06", "SEC-02")
def test_a_case_is_closed_only_by_a_logged_decision_on_the_case(bench: Bench) -> None:
    unit, other_unit = (bench.bring_to("quarantined", envelope(number)) for number in (1, 2))
    own_tx(bench.ledger.log).record(GovernanceAction.DISCARD, JANE, wal_id=other_unit.wal_id)
    own_tx(bench.ledger.log).record(GovernanceAction.REPLAY_STARTED, JANE, wal_id=unit.wal_id)
    where = f" WHERE wal_id = '{unit.wal_id}'"
    entries = {(row["action"], row["wal_id"]): row["entry_id"] for row in bench.ask("SELECT * FROM governance_log")}
    before = every_row(bench.database)
    for state, entry in (
        ("discarded", None),
        ("discarded", 999),
        ("discarded", entries["discard", other_unit.wal_id]),
        ("discarded", entries["replay_started", unit.wal_id]),
        ("released", entries["discard", other_unit.wal_id]),
        ("released", entries["quarantine", unit.wal_id]),
        ("open", entries["quarantine", unit.wal_id]),
        ("forgotten", entries["quarantine", unit.wal_id]),
    ):
        with pytest.raises(DBAPIError):
            bench.type_by_hand(CLOSE_CASE + where, state=state, entry=entry)
        assert every_row(bench.database) == before, state
    own_tx(bench.ledger.log).record(GovernanceAction.DISCARD, JANE, wal_id=unit.wal_id)
    [right] = bench.ask(f"SELECT max(entry_id) AS entry FROM governance_log {where} AND action = 'discard'")
    assert bench.type_by_hand(CLOSE_CASE + where, state="discarded", entry=right["entry"]) == 1
    with pytest.raises(DBAPIError, match="cases_are_filled_and_closed_once"):
        bench.type_by_hand(f"UPDATE quarantine_cases SET state = 'open', closed_at = NULL, closing_entry = NULL{where}")
    # A discarded unit stays quarantined, even with a decision.
    with pytest.raises(IllegalTransitionError, match="discarded_stays_out"), explained():
        type_together(bench, (DECIDE, decision(unit)), (BACK, {"wal_id": unit.wal_id}))


@pytest.mark.clause("BEY-06", "WSM-20")
def test_hand_typed_quarantine_and_release_also_write_case_and_governance_entry(bench: Bench) -> None:
    unit = envelope()
    bench.bring_to("failed", unit)
    # A name longer than the entry's column must not prevent the transition.
    bench.type_by_hand(
        "UPDATE nodd_wal_records SET status = 'quarantined', next_attempt_at = NULL, version = version + 1, "
        "changed_by = :by, change_reason = 'by hand'",
        by="x" * 300,
    )
    [entry] = own_tx(bench.ledger.log).entries(action=GovernanceAction.QUARANTINE, wal_id=unit.wal_id)
    assert (entry.actor, entry.reason, entry.change_ref) == ("x" * 200, "by hand", None)
    assert entry.details == {"run_id": "run-1", "error_code": "missing_object", "reason_code": "by hand"}
    cases = QuarantineCases(bench.database, clock=bench.clock)
    [case] = own_tx(cases).of(unit.wal_id)
    assert (case.state, case.reason, case.quarantined_version) == (CaseState.OPEN, "by hand", 4)
    record = bench.ledger.get(unit.wal_id)
    type_together(bench, (DECIDE, decision(record)), (BACK, {"wal_id": unit.wal_id}))
    [case] = own_tx(cases).of(unit.wal_id)
    assert (case.state, case.closed_by, case.change_ref) == (CaseState.RELEASED, "person", "CHG-1")


@pytest.mark.clause("SEC-02")
def test_governance_entries_are_selected_by_any_combination_of_filters(bench: Bench) -> None:
    log, units = bench.ledger.log, [envelope(number).wal_id for number in range(2)]
    bench.ledger.ensure([envelope(0), envelope(1)])
    actions = (GovernanceAction.REPLAY_STARTED, GovernanceAction.REPLAY_STOPPED)
    entries_made = list(itertools.product(actions, ("hrrr", "nexrad-l2"), units))
    for action, dataset, wal_id in entries_made:
        own_tx(log).record(action, JANE, dataset=dataset, wal_id=wal_id, details={"run_id": "r1"})
    for filter_values in itertools.product((None, actions[0]), (None, "hrrr"), (None, units[0])):
        filters = dict(zip(("action", "dataset", "wal_id"), filter_values, strict=True))
        matching = [(entry.action, entry.dataset, entry.wal_id) for entry in own_tx(log).entries(**filters)]
        assert matching == [
            row
            for row in reversed(entries_made)
            if all(want in {None, has} for want, has in zip(filter_values, row, strict=True))
        ]
    assert len(own_tx(log).entries(limit=3)) == 3
    of_run = {"action": actions[0], "dataset": "hrrr", "run_id": "r1"}
    for change in ({}, {"action": GovernanceAction.MASK}, {"dataset": "goes-abi"}, {"run_id": "r2"}):
        assert own_tx(log).holds(**of_run | change) is (change == {})


@pytest.mark.clause("WAL-10")
def test_a_kill_switch_is_on_until_the_moment_at_which_it_expires(bench: Bench) -> None:
    switches, now, waiting = bench.ledger.switches, bench.clock.now, envelope()
    bench.bring_to("pending", waiting)
    with pytest.raises(RefusedError, match="before it begins"):
        switches.engage("hrrr", JANE, expires_at=now)
    for dataset in ("hrrr", "gfs", waiting.dataset):
        switches.engage(dataset, JANE, expires_at=now + timedelta(seconds=10))
    bench.clock.advance(9.999999)
    with pytest.raises(RefusedError, match="on already"):
        switches.engage("hrrr", JANE)
    assert own_tx(switches).off(["hrrr", "gfs", "goes-abi"]) == {"hrrr", "gfs"}
    assert bench.claim() == []
    bench.clock.advance(0.000001)
    assert own_tx(switches).engaged() == {}
    assert [unit.wal_id for unit in bench.claim()] == [waiting.wal_id]
    with pytest.raises(RefusedError, match="is not on"):
        switches.release("gfs", JANE)
    switches.engage("hrrr", JANE)
    switches.engage("gfs", JANE)
    # An expired switch that is engaged again is recorded as released by its expiry.
    closed = bench.ask("SELECT dataset, released_by FROM kill_switches WHERE released_at IS NOT NULL ORDER BY dataset")
    assert [(row["dataset"], row["released_by"]) for row in closed] == [("gfs", "expiry"), ("hrrr", "expiry")]
    switches.release("hrrr", JANE)
    assert list(own_tx(switches).engaged()) == ["gfs"]
