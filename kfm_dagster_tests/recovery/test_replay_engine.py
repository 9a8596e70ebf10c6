"""Executing replays: each unit once, pause and resume, conflicts, differing results, audit."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from threading import Barrier
from typing import Any

import pytest
from pydantic import SecretStr

from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import RefusedError, UnknownNameError, UnknownReplayReasonError
from kfm_dagster.exports.metrics import exposition
from kfm_dagster.exports.validation import validate_report
from kfm_dagster.failpoints import Failpoint
from kfm_dagster.governance.log import Decision, GovernanceAction
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.recovery.replay import runs
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.recovery.replay.limits import HoldReason
from kfm_dagster.recovery.replay.runs import ReplayState
from kfm_dagster.recovery.replay.units import Admission
from kfm_dagster.settings import Environment
from kfm_dagster.storage.statements import statement
from kfm_dagster_tests.alerts.recorded import messages, service_url
from kfm_dagster_tests.factories import failed, finished, repeat_units
from kfm_dagster_tests.followers.announcements.web_server import open_web_server
from kfm_dagster_tests.governance.conftest import release
from kfm_dagster_tests.moments import deaths, dying
from kfm_dagster_tests.recovery.replays import PERSON, Stand, another_result, open_stand, repair, selection
from kfm_dagster_tests.storage.test_guards import LEGAL
from kfm_dagster_tests.transactions import own_tx

WAIT = Decision(actor="operator", reason="the archive is slow", change_ref="INC-2")


def admissions(stand: Stand, replay_run_id: str) -> Counter[str]:
    """Count a replay's readmissions of each unit by the ledger's history."""
    return Counter(
        entry.wal_id
        for wal_id in stand.records()
        for entry in own_tx(stand.pipeline.ledger).history(wal_id)
        if entry.to_status is Status.PENDING and entry.fields["replay_run_id"] == replay_run_id
    )


def outcomes(stand: Stand, replay_run_id: str) -> dict[str, int]:
    counted = stand.engine.report(replay_run_id).account.outcomes
    return {outcome.value: count for outcome, count in counted.items() if count}


def replays_counted(stand: Stand, *, days: int) -> tuple[Any, Any]:
    report = validate_report(stand.pipeline, since=stand.pipeline.clock() - timedelta(days=days))
    return report["replays"], report["kpis"]["replay_count"]


@pytest.mark.clause("RPL-05", "WAL-10", "PCS-16", "PCS-17")
def test_a_replay_admits_its_batches_one_by_one_and_ends_with_a_report(stand: Stand) -> None:
    units = stand.bring("failed", 5)
    other_units = stand.bring("succeeded", 2, first=10)
    assert replays_counted(stand, days=1) == ({"count": 0, "stages": 0}, 0)
    run = stand.engine.start(selection(limits={"batch_size": 2}), PERSON)
    assert (run.state, run.batches, stand.statuses()) == (ReplayState.RUNNING, 3, {"failed": 5, "succeeded": 2})
    # The report counts the replay from its start.
    assert replays_counted(stand, days=1) == ({"count": 1, "stages": 0}, 1)
    assert replays_counted(stand, days=-1) == ({"count": 0, "stages": 0}, 0)

    steps = stand.carry_out(run.replay_run_id)
    assert [step.admitted.admitted for step in steps if step.admitted] == [2, 2, 1]
    assert steps[-1].state is ReplayState.FINISHED
    assert admissions(stand, run.replay_run_id) == {unit.wal_id: 1 for unit in units}
    records = stand.records()
    assert {(records[unit.wal_id].replay_reason, records[unit.wal_id].lane) for unit in units} == {
        ("incident", Lane.BULK)
    }
    assert {records[unit.wal_id].attempts for unit in other_units} == {1}
    assert outcomes(stand, run.replay_run_id) == {"succeeded": 5}
    assert stand.engine.advance(run.replay_run_id).state is ReplayState.FINISHED


@pytest.mark.clause("RPL-05")
def test_readmitted_units_keep_their_replay_reason_when_a_worker_is_lost(stand: Stand) -> None:
    stand.bring("failed", 1)
    run = stand.engine.start(selection(), PERSON)
    stand.engine.advance(run.replay_run_id)
    [claimed] = stand.claim(run_id="run-2")
    assert (claimed.replay_run_id, claimed.replay_reason, claimed.lane) == (run.replay_run_id, "incident", Lane.BULK)
    own_tx(stand.pipeline.ledger).release_lost(run_ids=["run-2"])
    [reclaimed] = stand.claim(run_id="run-3")
    assert (reclaimed.replay_run_id, reclaimed.lane) == (run.replay_run_id, Lane.BULK)


@pytest.mark.clause("RPL-05", "WSM-15")
def test_every_outcome_is_counted_and_the_counts_sum_to_the_selection(stand: Stand) -> None:
    units = stand.bring("failed", 4)
    run = stand.engine.start(selection(), PERSON)
    stand.engine.advance(run.replay_run_id)
    claimed = {unit.wal_id: unit for unit in stand.claim([*units[:3]], run_id="run-2")}
    assert outcomes(stand, run.replay_run_id) == {"pending": 1, "in_progress": 3}
    endings = [finished(claimed[units[0].wal_id]), failed(claimed[units[1].wal_id])]
    own_tx(stand.pipeline.ledger).settle(endings, run_id="run-2")
    own_tx(stand.pipeline.ledger).quarantine([units[3].wal_id], reason_code="by_hand", decision=PERSON)
    expected = {"succeeded": 1, "retrying": 1, "in_progress": 1, "quarantined": 1}
    assert outcomes(stand, run.replay_run_id) == expected
    assert stand.engine.advance(run.replay_run_id).state is ReplayState.RUNNING
    # A later readmission of a unit by another actor does not change the outcome.
    repeat_units(stand.pipeline.ledger, units[0].wal_id)
    version = own_tx(stand.pipeline.ledger).get(units[3].wal_id).version
    assert release(stand.pipeline, units[3].wal_id, version, PERSON)
    assert outcomes(stand, run.replay_run_id) == expected


@pytest.mark.clause("RPL-05")
def test_a_replay_waits_for_retries_and_finishes_with_failures(stand: Stand) -> None:
    stand.bring("failed", 2)
    run = stand.engine.start(selection(), PERSON)
    stand.carry_out(run.replay_run_id, ending=failed)
    assert (stand.engine.report(run.replay_run_id).run.state, outcomes(stand, run.replay_run_id)) == (
        ReplayState.RUNNING,
        {"retrying": 2},
    )
    stand.clock.forward(7200)
    own_tx(stand.pipeline.ledger).retry_due(now=stand.clock(), limit=10)
    stand.carry_out(run.replay_run_id, ending=failed)
    report = stand.engine.report(run.replay_run_id)
    assert (report.run.state, report.account.bad) == (ReplayState.FINISHED, 2)
    assert outcomes(stand, run.replay_run_id) == {"quarantined": 2}
    [entry] = own_tx(stand.pipeline.ledger.log).entries(action=GovernanceAction.REPLAY_FINISHED)
    assert entry.details["outcomes"] == {"quarantined": 2}


@pytest.mark.clause("RPL-05")
def test_units_that_changed_since_the_selection_are_skipped_and_counted(stand: Stand) -> None:
    units = stand.bring("failed", 3)
    succeeded = stand.bring("succeeded", 1, first=10)
    first = stand.engine.start(selection(), PERSON)
    second = stand.engine.start(repair("failed", "succeeded"), PERSON)
    # Meanwhile the contract's retry succeeded for one unit and failed for another.
    own_tx(stand.pipeline.ledger).requeue([unit.wal_id for unit in units[:2]])
    [good] = stand.claim(units[:1], run_id="run-2")
    [bad] = stand.claim(units[1:2], run_id="run-3")
    own_tx(stand.pipeline.ledger).settle([finished(good)], run_id="run-2")
    own_tx(stand.pipeline.ledger).settle([failed(bad, code="size_mismatch")], run_id="run-3")
    assert str(stand.engine.advance(first.replay_run_id)).endswith("batch 1: 2 units admitted, skipped 1 moved")
    stand.work()
    stand.clock.forward(60)
    # A third replay gives the succeeded unit a new result, which the second replay is not approved to replace.
    repeated = repair(labels={"replay_reason": "test"}, filters={"wal_ids": [succeeded[0].wal_id]})
    stand.carry_out(stand.engine.start(repeated, PERSON).replay_run_id)
    stand.clock.forward(60)
    assert str(stand.engine.advance(second.replay_run_id)).endswith("batch 1: 0 units admitted, skipped 4 moved")
    assert stand.engine.advance(second.replay_run_id).state is ReplayState.FINISHED
    assert stand.engine.report(second.replay_run_id).account.skipped == {"moved": 4}


@pytest.mark.clause("RPL-05")
def test_a_paused_replay_admits_no_unit_and_resumes_where_it_stopped(stand: Stand) -> None:
    units = stand.bring("failed", 6)
    run = stand.engine.start(selection(limits={"batch_size": 2}), PERSON)
    for halt, state in ((stand.engine.pause, ReplayState.PAUSED), (stand.engine.stop, ReplayState.STOPPED)):
        assert stand.engine.advance(run.replay_run_id).admitted is not None
        halted = halt(run.replay_run_id, WAIT)
        assert (halted.state, halted.state_reason) == (state, WAIT.reason)
        before = admissions(stand, run.replay_run_id)
        for _ in range(3):
            stand.clock.forward(600)
            assert stand.engine.advance(run.replay_run_id).state is state
        assert stand.engine.advance_all() == []
        assert admissions(stand, run.replay_run_id) == before
        # Readmitted units are still processed.
        assert len(stand.work()) == 2
        assert stand.engine.resume(run.replay_run_id, WAIT).state is ReplayState.RUNNING
    stand.carry_out(run.replay_run_id)
    assert admissions(stand, run.replay_run_id) == {unit.wal_id: 1 for unit in units}
    assert outcomes(stand, run.replay_run_id) == {"succeeded": 6}


@pytest.mark.clause("RPL-05")
def test_an_illegal_change_of_state_is_refused_in_one_line(stand: Stand) -> None:
    run = stand.engine.start(selection(), PERSON)
    for change, state in (("resume", "running"), ("pause", "finished"), ("stop", "finished")):
        with pytest.raises(RefusedError) as refused:
            getattr(stand.engine, change)(run.replay_run_id, WAIT)
        assert state in str(refused.value)
        with pytest.raises(UnknownNameError):
            getattr(stand.engine, change)("no-such-replay", WAIT)
        stand.engine.advance(run.replay_run_id)


def killed(stand: Stand, replay_run_id: str) -> set[str]:
    """Advance until done, dying at a later moment each time; return the moments of death."""
    moments: set[str] = set()
    for at, death in deaths():
        with dying(stand.pipeline.database, at=death):
            ReplayEngine(pipeline=stand.pipeline).advance(replay_run_id)
        moments |= {*death.reached[at - 1 : at]}
    return moments


@pytest.mark.clause("RPL-05")
def test_an_advance_killed_between_any_two_statements_loses_and_duplicates_no_unit(stand: Stand) -> None:
    units = stand.bring("failed", 2) + stand.bring("succeeded", 2, first=2) + stand.bring("quarantined", 2, first=4)
    run = stand.engine.start(repair("failed", "succeeded", "quarantined", limits={"batch_size": 4}), PERSON)
    moments, dialect = killed(stand, run.replay_run_id), stand.pipeline.database.dialect
    names = "replay.lock replay.next_batch replay.units_of_batch replay.decide ledger.requeue ledger.decide"
    assert {str(statement(dialect, name)) for name in (*names.split(), "ledger.override")} <= moments
    assert {Failpoint.DATABASE_COMMIT_BEFORE, Failpoint.DATABASE_COMMIT_AFTER} <= moments
    # One process died just after its commit; the next process did not admit the same batch again.
    assert set(admissions(stand, run.replay_run_id).values()) == {1}
    stand.carry_out(run.replay_run_id)
    assert admissions(stand, run.replay_run_id) == {unit.wal_id: 1 for unit in units}
    assert outcomes(stand, run.replay_run_id) == {"succeeded": 6}
    assert stand.statuses() == {"succeeded": 6}


def contend(stand: Stand, replay_run_id: str, together: Barrier) -> list[int]:
    """Advance concurrently until no batch is left; return the batches admitted by this worker."""
    began = time.monotonic()
    stand.pipeline.clock = lambda: stand.clock.now + timedelta(seconds=time.monotonic() - began)
    together.wait(60)
    won: list[int] = []
    while True:
        step = stand.engine.advance(replay_run_id)
        if step.admitted is not None:
            won.append(step.admitted.batch)
            if len(won) == 1:
                # The test proves nothing if one worker takes every batch.
                together.wait(60)
        elif step.hold is None or step.hold.reason is not HoldReason.RATE:
            return won
        time.sleep(0.005)  # without the pause this worker could get SQLite's lock again


@pytest.mark.clause("RPL-05")
def test_concurrent_workers_admit_every_batch_of_a_replay_once(stand: Stand) -> None:
    batches = stand.engine.limits[Environment.DEV].batches_in_flight_per_dataset
    units = stand.bring("failed", 3 * batches)
    run = stand.engine.start(selection(limits={"batch_size": 3}), PERSON)
    url = stand.pipeline.database.engine.url.render_as_string(hide_password=False)
    others = [open_stand(stand.pipeline.settings.home, url) for _ in range(3)]
    with ThreadPoolExecutor(len(others)) as threads:
        together = Barrier(len(others))
        won = list(threads.map(lambda worker: contend(worker, run.replay_run_id, together), others))
    for other in others:
        other.pipeline.close()
    assert sorted(batch for own in won for batch in own) == list(range(1, batches + 1))
    assert all(won)
    assert admissions(stand, run.replay_run_id) == {unit.wal_id: 1 for unit in units}
    stand.work()
    assert stand.engine.advance(run.replay_run_id).state is ReplayState.FINISHED


@pytest.mark.clause("RPL-05", "WAL-11")
def test_a_result_that_differs_and_must_match_stops_the_replay_and_sends_an_alert(stand: Stand) -> None:
    units = stand.bring("succeeded", 6)
    run = stand.engine.start(repair(options={"must_match": True}, limits={"batch_size": 2}), PERSON)
    stand.engine.advance(run.replay_run_id)
    stand.work()
    stand.clock.forward(60)
    assert stand.engine.advance(run.replay_run_id).admitted is not None
    stand.work(another_result)
    stand.clock.forward(60)

    assert stand.engine.advance(run.replay_run_id).state is ReplayState.STOPPED
    report = stand.engine.report(run.replay_run_id)
    assert [difference.wal_id for difference in report.differing] == [unit.wal_id for unit in units[2:4]]
    assert "2 results differ" in str(report.run.state_reason)
    assert own_tx(stand.pipeline.ledger).mismatch_counts() == {"nexrad-l2": 2}
    assert 'nodd_sns_replay_mismatch_total{dataset="nexrad-l2",env="dev"} 2.0' in exposition(stand.pipeline).decode()
    log = own_tx(stand.pipeline.ledger.log)
    audited = log.entries(action=GovernanceAction.REPLAY_MISMATCH)
    assert {entry.wal_id for entry in audited} == {unit.wal_id for unit in units[2:4]}
    with open_web_server() as server:
        evaluator = replace(stand.pipeline.alert_evaluator(), urls=SecretStr(f"page_ops={service_url(server)}"))
        evaluator.evaluate()
        evaluator.evaluate()
    [message] = messages(server)
    assert ("replay_divergence" in message["title"], "nexrad-l2" in message["message"]) == (True, True)
    [entry] = log.entries(action=GovernanceAction.REPLAY_STOPPED)
    assert (entry.actor, entry.details["mismatches"]) == ("local", 2)
    # A person resumes the replay after a review; the next difference stops the replay again.
    stand.engine.resume(run.replay_run_id, WAIT)
    assert stand.engine.advance(run.replay_run_id).admitted is not None
    stand.work(another_result)
    assert stand.engine.advance(run.replay_run_id).state is ReplayState.STOPPED
    assert admissions(stand, run.replay_run_id) == {unit.wal_id: 1 for unit in units}


@pytest.mark.clause("RPL-07")
def test_a_result_that_is_allowed_to_differ_is_kept_and_does_not_stop_the_replay(stand: Stand) -> None:
    stand.bring("succeeded", 2)
    run = stand.engine.start(repair(), PERSON)
    stand.carry_out(run.replay_run_id, ending=another_result)
    evaluator = stand.pipeline.alert_evaluator()
    evaluator.evaluate()
    assert evaluator.store.listed() == []
    assert stand.engine.report(run.replay_run_id).run.state is ReplayState.FINISHED
    assert own_tx(stand.pipeline.ledger).mismatch_counts() == {}
    assert [mismatch.permitted for mismatch in stand.pipeline.ledger.mismatches()] == [True, True]


@pytest.mark.clause("SEC-02", "RPL-07")
def test_the_log_has_actor_time_reason_and_change_reference_of_the_replay_and_each_override(
    stand: Stand,
) -> None:
    done, out = stand.bring("succeeded", 1), stand.bring("quarantined", 1, first=5)
    run = stand.engine.start(repair("succeeded", "quarantined", options={"approval": "CHG-9"}), PERSON)
    stand.engine.advance(run.replay_run_id)
    stand.engine.pause(run.replay_run_id, WAIT)
    stand.engine.resume(run.replay_run_id, WAIT)
    stand.engine.stop(run.replay_run_id, WAIT)
    entries = {entry.action: entry for entry in own_tx(stand.pipeline.ledger.log).entries()}
    for action in ("replay_started", "repair_and_replace", "release"):
        entry = entries[action]
        assert (entry.actor, entry.reason, entry.change_ref) == (PERSON.actor, PERSON.reason, PERSON.change_ref)
        assert entry.details["replay_run_id"] == run.replay_run_id
    assert (entries["repair_and_replace"].wal_id, entries["release"].wal_id) == (done[0].wal_id, out[0].wal_id)
    assert entries["replay_started"].details["spec_sha256"] == run.spec_sha256
    for action in ("replay_paused", "replay_resumed", "replay_stopped"):
        assert (entries[action].actor, entries[action].reason) == (WAIT.actor, WAIT.reason)
        assert entries[action].at == stand.clock()


def test_the_spec_s_change_reference_is_the_default(stand: Stand) -> None:
    person = Decision(actor="person", reason="fixed")
    run = stand.engine.start(selection(labels={"incident_id": "INC-3"}), person)
    assert run.decision.change_ref == "INC-3"
    with pytest.raises(UnknownReplayReasonError, match=r"observed just-because; .* or add it to `reasons` in"):
        stand.engine.plan(selection(labels={"replay_reason": "just-because"}))


def test_a_replay_that_this_release_cannot_read_does_not_block_other_replays(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand.bring("failed", 1)
    monkeypatch.setattr("kfm_dagster.recovery.replay.engine.uuid.uuid4", lambda: "aaa")
    broken = stand.engine.start(selection(), PERSON)
    monkeypatch.undo()
    read = runs.get

    def unreadable(tx: Any, replay_run_id: str) -> Any:
        if replay_run_id == broken.replay_run_id:
            raise UnknownNameError("the spec is of a newer release")
        return read(tx, replay_run_id)

    sound = stand.engine.start(selection(), PERSON)
    monkeypatch.setattr(runs, "get", unreadable)
    steps = {step.replay_run_id: step for step in stand.engine.advance_all()}
    held = steps[broken.replay_run_id].hold
    assert (held.reason, "newer release" in held.observed) == (HoldReason.GUARD, True)
    assert steps[sound.replay_run_id].admitted is not None


def test_the_legal_changes_of_a_replay_s_state_equal_those_of_the_database() -> None:
    assert {(before, after) for before, then in runs.NEXT_STATES.items() for after in then} == LEGAL | {
        ("planned", "running")
    }


@pytest.mark.clause("RPL-05")
def test_a_unit_that_the_ledger_unexpectedly_refuses_is_recorded_as_skipped(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand.bring("failed", 2)
    replay = stand.engine.start(selection(), PERSON)
    monkeypatch.setattr(Ledger, "requeue", lambda *_, **__: frozenset())
    assert str(stand.engine.advance(replay.replay_run_id)).endswith("batch 1: 0 units admitted, skipped 2 moved")
    # Undecided units would form the replay's next batch again and again.
    assert stand.engine.advance(replay.replay_run_id).state is ReplayState.FINISHED


@pytest.mark.clause("RPL-07")
def test_a_result_of_an_unreadable_version_counts_as_newer(contracts: ContractRegistry) -> None:
    for made_by, running, newer in (
        (None, "1.2.0", False),
        ("1.10.0", "1.9.0", True),
        ("1.9.0", "1.9.0", False),
        ("1.8.0", "1.9.0", False),
        ("a branch", "1.9.0", True),
        ("a branch", "a branch", False),
    ):
        rules = Admission(registry=contracts, switched_off=frozenset(), code_version=running, allow_downgrade=False)
        assert rules.is_newer(made_by) is newer, (made_by, running)
