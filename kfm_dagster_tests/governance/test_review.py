"""In prod the database enforces a second person's approval of overrides (WSM-21)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.defs.resources import SqsQueueResource, open_pipeline
from kfm_dagster.errors import ExitCode, IllegalTransitionError
from kfm_dagster.governance.log import DAGSTER_UI, Decision, GovernanceAction, GovernanceEntry
from kfm_dagster.governance.review import APPROVED_WITHIN, Command, OverrideReview
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.recovery.replay import engine
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.recovery.replay.limits import LIMITS
from kfm_dagster.settings import Environment, Settings
from kfm_dagster_tests.commands import Answer, Call
from kfm_dagster_tests.databases import every_row
from kfm_dagster_tests.factories import bring, envelope, finished
from kfm_dagster_tests.governance.conftest import release
from kfm_dagster_tests.ledger.test_ledger_governed import BACK, DECIDE, decision
from kfm_dagster_tests.transactions import own_tx

DAY = "2025-12-03"
MADE = datetime(2025, 6, 9, tzinfo=UTC)
"""The time at which a backfill's objects were written, days after the times of their data."""
JANE = Decision(actor="jane", reason="the source is fixed", change_ref="CHG-9")
WHY = ["--reason", "the source is fixed", "--change-ref", "CHG-9"]
APPROVING = ["--actor", "bob", "--reason", "seen the evidence", "--change-ref", "CHG-9"]
REPAIR = ["replay", "run", "--mode", "repair-and-replace", "--allow-repair-and-replace", "--confirm", "--detach", *WHY]
OUT = envelope(0)
"""The quarantined unit in `prod`."""
pytestmark = pytest.mark.clause("WSM-21")


@pytest.fixture
def prod(deployment: Pipeline, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    """A deployment of prod over two units: the first is quarantined, the second has succeeded."""
    monkeypatch.setenv("KFM_ENV", "prod")
    opened = Pipeline.open(Settings.load())
    ledger = opened.ledger
    ledger.review.work_in(opened.settings)
    own_tx(ledger).ensure([envelope(0)])
    bring(ledger, "succeeded", [envelope(1)])
    own_tx(ledger).quarantine([envelope(0).wal_id], reason_code="looked_odd", decision=JANE)
    yield opened
    opened.close()


def status(pipeline: Pipeline, unit: Envelope) -> Status:
    return own_tx(pipeline.ledger).statuses([unit.wal_id])[unit.wal_id]


def proposed(answer: Answer) -> str:
    assert answer.code == ExitCode.WAITS_FOR_APPROVAL, answer
    assert "waits for a second person" in answer.out
    return answer.out.split()[1]


def test_a_release_in_prod_needs_a_second_person_and_the_log_names_both_persons(call: Call, prod: Pipeline) -> None:
    number = proposed(call("release", OUT.wal_id, *WHY))
    assert status(prod, OUT) is Status.QUARANTINED
    [waits] = call("governance", "pending", "--json").rows
    assert (waits["proposal_id"], waits["proposed_by"], waits["command"]) == (int(number), "jane", "release")
    assert waits["overrides"] == {"release": {OUT.wal_id: 2}}

    done = call("governance", "approve", number, *APPROVING)
    assert (done.code, done.out) == (ExitCode.DONE, f"proposal {number} is approved: 1 unit released\n")
    assert status(prod, OUT) is Status.PENDING
    [entry] = own_tx(prod.ledger.log).entries(action=GovernanceAction.RELEASE)
    assert (entry.actor, entry.approved_by, entry.proposal_id) == ("jane", "bob", int(number))
    assert (entry.wal_id, entry.record_version, entry.reason) == (OUT.wal_id, 3, "the source is fixed")
    [approval] = own_tx(prod.ledger.log).entries(action=GovernanceAction.OVERRIDE_APPROVED)
    assert (approval.actor, approval.reason, approval.proposal_id) == ("bob", "seen the evidence", int(number))
    assert approval.details == {"command": "release", "proposed_by": "jane", "units": 1}
    assert call("governance", "pending", "--json").rows == []


def test_a_replay_of_successes_in_prod_starts_with_the_approval_and_each_override_names_both_persons(
    call: Call, prod: Pipeline
) -> None:
    statuses = ["--status", "quarantined", "--status", "succeeded"]
    chosen = ["--wal-id", OUT.wal_id, "--wal-id", envelope(1).wal_id, *statuses]
    number = proposed(call(*REPAIR, *chosen))
    assert own_tx(prod.ledger.log).entries(action=GovernanceAction.REPLAY_STARTED) == []
    done = call("governance", "approve", number, *APPROVING, "--json")
    assert done.code == ExitCode.DONE, done
    replay = done.rows[0]["replay_run_id"]
    ReplayEngine(pipeline=prod).advance(replay)
    assert {status(prod, envelope(number)) for number in (0, 1)} == {Status.PENDING}
    entries = [entry for entry in own_tx(prod.ledger.log).entries() if entry.to_status == Status.PENDING]
    assert {(entry.action, entry.actor, entry.approved_by) for entry in entries} == {
        ("release", "jane", "bob"),
        ("repair_and_replace", "jane", "bob"),
    }


@pytest.mark.clause("OPR-24", "RPL-03", "RPL-07")
def test_one_approved_decision_covers_a_dataset_and_a_range_of_days_batch_by_batch(
    call: Call, prod: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five units exceed the limit of selections by event time (two); they were written days after their own times."""
    narrow = replace(LIMITS[Environment.PROD], max_selection_records=2, default_batch_size=2, max_batches=1)
    monkeypatch.setattr(engine, "LIMITS", {Environment.PROD: narrow})
    start = datetime(2025, 6, 1, 23, 59, 58, tzinfo=UTC)
    units = [envelope(n, time_range_start=start + timedelta(seconds=n), event_time=MADE) for n in range(5)]
    other = envelope(9, time_range_start=start + timedelta(days=1, seconds=2), event_time=MADE)
    own_tx(prod.ledger).ensure([*units, other])
    for day in ("2025-06-01", "2025-06-02", "2025-06-03"):
        claimed = own_tx(prod.ledger).claim(dataset="nexrad-l2", partition=day, run_id=day, limit=9)
        own_tx(prod.ledger).settle([finished(unit) for unit in claimed], run_id=day)
    chosen = ["--dataset", "nexrad-l2", "--status", "succeeded"]
    written = ["--event-time-start", "2025-06-09", "--event-time-end", "2025-06-10"]
    assert call(*REPAIR, *chosen, *written).code == ExitCode.REFUSED
    number = proposed(call(*REPAIR, *chosen, "--first-day", "2025-06-01", "--last-day", "2025-06-02"))
    replay = call("governance", "approve", number, *APPROVING, "--json").rows[0]["replay_run_id"]
    done = [0]
    while (step := ReplayEngine(pipeline=prod).advance(replay)).admitted or step.hold:
        done.append(step.admitted.admitted if step.admitted else 0)
    assert [admitted for admitted in done if admitted] == [2, 2, 1]
    assert {status(prod, unit) for unit in units} == {Status.PENDING}
    assert status(prod, other) is Status.SUCCEEDED
    entries = own_tx(prod.ledger.log).entries(action=GovernanceAction.REPAIR_AND_REPLACE)
    assert {(entry.actor, entry.approved_by, entry.proposal_id) for entry in entries} == {("jane", "bob", int(number))}
    assert {entry.wal_id for entry in entries} == {unit.wal_id for unit in units}


def test_an_impossible_approval_is_refused_in_one_line_and_changes_no_row(call: Call, prod: Pipeline) -> None:
    def a_proposal() -> str:
        return proposed(call("release", OUT.wal_id, *WHY))

    def decided(decision_name: str) -> str:
        number = a_proposal()
        assert call("governance", decision_name, number, *APPROVING).code == ExitCode.DONE
        return number

    def expired() -> str:
        review = OverrideReview(prod.database, clock=lambda: prod.clock() - APPROVED_WITHIN)
        return str(own_tx(review).propose(Command.RELEASE, JANE, {GovernanceAction.RELEASE: {OUT.wal_id: 2}}))

    def moved() -> str:
        number, second = a_proposal(), a_proposal()
        assert call("governance", "approve", second, *APPROVING).code == ExitCode.DONE
        return number

    cases: dict[str, tuple[Callable[[], str], list[str], str]] = {
        "its own proposer": (a_proposal, ["--actor", "jane"], "cannot be approved by its proposer"),
        "the proposer, spelled differently": (a_proposal, ["--actor", " JANE"], "cannot be approved by its proposer"),
        "an unknown proposal": (lambda: "999999", [], "unknown proposal; observed 999999"),
        "no reason": (a_proposal, ["--reason", " "], "the reason is missing"),
        "withdrawn": (lambda: decided("withdraw"), [], "was decided already; observed override_withdrawn by bob"),
        "expired": (expired, [], "the proposal has expired"),
        "a changed unit": (moved, [], f"changed since it was read; observed {OUT.wal_id} at another version"),
        "used": (lambda: str(_last(prod).proposal_id), [], "was decided already; observed override_approved by bob"),
    }
    for name, (make, more, expected) in cases.items():
        number = make()
        before = every_row(prod.database)
        answer = call("governance", "approve", number, *APPROVING, *more)
        assert answer.code in {ExitCode.REFUSED, ExitCode.USAGE}, name
        assert (answer.out, answer.err.count("\n")) == ("", 1), name
        assert expected in answer.err, name
        assert every_row(prod.database) == before, name
    # Still open: the proposals of the two cases with their own proposer, of "no reason" and of "a changed unit".
    assert len(call("governance", "pending", "--json").rows) == 4


def test_an_approval_is_refused_if_the_replay_selects_other_units_than_proposed(call: Call, prod: Pipeline) -> None:
    window = ["--event-time-start", "2025-12-01", "--event-time-end", "2025-12-30"]
    number = proposed(call(*REPAIR, "--dataset", "nexrad-l2", "--status", "succeeded", *window))
    own_tx(prod.ledger).ensure([envelope(5)])
    claimed = own_tx(prod.ledger).claim(dataset="nexrad-l2", partition=DAY, run_id="run-2", limit=1)
    own_tx(prod.ledger).settle([finished(unit) for unit in claimed], run_id="run-2")
    before = every_row(prod.database)
    refusal = "needs other overrides than were proposed; observed 2 units"
    call("governance", "approve", number, *APPROVING).refused(refusal, code=ExitCode.REFUSED)
    assert every_row(prod.database) == before


def test_a_client_set_to_dev_cannot_override_alone_on_a_prod_database(
    call: Call, prod: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFM_ENV", "dev")
    number = proposed(call("release", OUT.wal_id, *WHY))
    assert call("governance", "approve", number, "--reason", "my own").code == ExitCode.REFUSED
    # The library behind the commands refuses it, too.
    before = every_row(prod.database)
    with pytest.raises(IllegalTransitionError, match=r"override_is_reviewed.*expected an approval by a second person"):
        release(prod, OUT.wal_id, 2, JANE)
    assert every_row(prod.database) == before


def test_the_database_refuses_forged_approvals(prod: Pipeline) -> None:
    out = own_tx(prod.ledger).get(OUT.wal_id)

    def entry(**changes: Any) -> dict[str, Any]:
        right = {"at": rfc3339(prod.clock()), "actor": "jane", "proposal_id": number, "approved_by": "bob"}
        return decision(out, **right | changes)

    def decides(actor: str, **changes: Any) -> dict[str, Any]:
        nothing = dict.fromkeys(("wal_id", "record_version", "from_status", "to_status", "approved_by"))
        return entry(actor=actor, action="override_approved", **nothing) | changes

    def typed(*rows: dict[str, Any]) -> None:
        with prod.database.engine.begin() as connection:
            for row in rows:
                connection.execute(sa.text(DECIDE), row)
            connection.execute(sa.text(BACK), {"at": rfc3339(prod.clock()), "wal_id": OUT.wal_id})

    number = own_tx(prod.ledger.review).propose(Command.RELEASE, JANE, {GovernanceAction.RELEASE: {OUT.wal_id: 2}})
    other = {GovernanceAction.RELEASE: {envelope(1).wal_id: 2}}
    another = own_tx(prod.ledger.review).propose(Command.RELEASE, JANE, other)
    late = rfc3339(prod.clock() + APPROVED_WITHIN + timedelta(seconds=1))
    forged: dict[str, list[dict[str, Any]]] = {
        "nobody approved": [entry(proposal_id=None, approved_by=None)],
        "an approver without an approval": [entry()],
        "an approver without a proposal": [entry(proposal_id=None)],
        "the proposer's own approval": [decides("jane"), entry(approved_by="jane")],
        "the proposer's own approval in capitals": [decides(" JANE "), entry(approved_by=" JANE ")],
        "an approval that is too late": [decides("bob", at=late), entry()],
        "an approval without a proposal": [decides("bob", proposal_id=None), entry()],
        "a withdrawal": [decides("bob", action="override_withdrawn"), entry()],
        "a withdrawal and then an approval": [
            decides("bob", action="override_withdrawn"), decides("bob"), entry(),
        ],
        "an approval by another person": [decides("bob"), entry(approved_by="eve")],
        "an approval of another person's proposal": [decides("bob"), entry(actor="eve")],
        "an approval of another action": [decides("bob"), entry(action="repair_and_replace")],
        "an approval of other units": [decides("bob", proposal_id=another), entry(proposal_id=another)],
    }  # fmt: skip
    before = every_row(prod.database)
    for name, rows in forged.items():
        with pytest.raises(DBAPIError):
            typed(*rows)
        assert every_row(prod.database) == before, name
    # No unit can be added to a decided proposal or to an entry that is not a proposal.
    own_tx(prod.ledger.review).withdraw(another, JANE)
    for proposal_id in (another, 1):
        with pytest.raises(DBAPIError, match="open_proposal"), prod.database.engine.begin() as connection:
            connection.exec_driver_sql(
                f"INSERT INTO override_units VALUES ({proposal_id}, '{OUT.wal_id}', 2, 'release')"
            )
    typed(decides("bob"), entry())
    assert status(prod, OUT) is Status.PENDING


def test_a_prod_deployment_marks_its_database_as_prod(deployment: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not own_tx(deployment.ledger.review).required(deployment.settings, JANE)
    monkeypatch.setenv("KFM_ENV", "prod")
    open_pipeline(Settings.load(), SqsQueueResource()).close()
    assert deployment.settings.env is Environment.DEV
    assert own_tx(deployment.ledger.review).required(deployment.settings, JANE)


@pytest.mark.clause("SEC-10")
def test_the_dagster_ui_alone_releases_no_unit_in_any_environment(call: Call, deployment: Pipeline) -> None:
    ledger, wal_id = deployment.ledger, envelope(0).wal_id
    own_tx(ledger).ensure([envelope(0)])
    own_tx(ledger).quarantine([wal_id], reason_code="looked_odd", decision=JANE)
    before = every_row(deployment.database)
    for actor in (DAGSTER_UI, " Dagster-UI"):
        with pytest.raises(IllegalTransitionError, match="override_is_reviewed"):
            release(deployment, wal_id, 2, replace(JANE, actor=actor))
    assert every_row(deployment.database) == before
    number = proposed(call("release", wal_id, *WHY, "--actor", DAGSTER_UI))
    assert call("governance", "approve", number, *APPROVING, "--actor", DAGSTER_UI).code == ExitCode.REFUSED
    assert call("governance", "approve", number, *APPROVING).code == ExitCode.DONE
    assert (status(deployment, envelope(0)), _last(deployment).approved_by) == (Status.PENDING, "bob")


def _last(pipeline: Pipeline) -> GovernanceEntry:
    return own_tx(pipeline.ledger.log).entries(action=GovernanceAction.RELEASE, limit=1)[0]
