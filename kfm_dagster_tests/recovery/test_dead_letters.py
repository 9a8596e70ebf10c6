"""Dead letters: classified, planned, drained, redriven and discarded without loss."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import pytest

from kfm_dagster.contracts.envelope import CLOSED, Lane
from kfm_dagster.demo.samples.nexrad_chunks import BUCKET, make_nexrad_chunks
from kfm_dagster.errors import ConfigurationError, ExitCode, RefusedError
from kfm_dagster.governance.log import Decision, GovernanceAction, UnattributedDecisionError
from kfm_dagster.ingest.intake import record
from kfm_dagster.ingest.kill_switch_policy import ALL_ON
from kfm_dagster.ledger.deliveries import DeliveryState
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.notifications.messages import VERIFIED, Authenticity, SenderVerdict
from kfm_dagster.notifications.sqs import Queue, SendOutcome
from kfm_dagster.recovery.dead_letters.letters import DeadLetterClass, LetterSelection, look, plan, status
from kfm_dagster.recovery.dead_letters.treatments import discard, drain, redrive
from kfm_dagster.recovery.dead_letters.work import Bounds, DeadLetterWork, End, LetterOutcome
from kfm_dagster.settings import Environment
from kfm_dagster.telemetry.totals import Total, kept_totals
from kfm_dagster.views.feeds import rejected_message
from kfm_dagster_tests.databases import every_row, refuse_rows
from kfm_dagster_tests.factories import repeat_units
from kfm_dagster_tests.integration.chain import assert_conserved, good
from kfm_dagster_tests.integration.chunk_feed import notice
from kfm_dagster_tests.ledger.bench import with_retry
from kfm_dagster_tests.recovery.dlq_fixture import (
    DATASET,
    DECISION,
    MALFORMED,
    PARTITION,
    START,
    TEST_EVENT,
    DlqFixture,
    event,
    reopened,
)
from kfm_dagster_tests.recovery.replays import another_result
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.one_database

SUCCEEDED, QUARANTINED, MISSING, INVALID, PENDING, IN_PROGRESS, UNKNOWN = (
    range(30),
    range(30, 50),
    range(50, 120),
    range(120, 150),
    range(150, 180),
    range(180, 200),
    range(200, 300),
)


def malformed(number: int) -> str:
    return f"{MALFORMED}{number}"


def bodies(dlq_fixture: DlqFixture, numbers: Iterable[int]) -> list[str]:
    return [dlq_fixture.body(number) for number in numbers]


def fill(dlq_fixture: DlqFixture) -> None:
    """Create more than three hundred dead letters: the pipeline has received most of them before."""
    dlq_fixture.receive_and_let_die([*bodies(dlq_fixture, range(200)), *map(malformed, range(10))])
    dlq_fixture.bury([*bodies(dlq_fixture, UNKNOWN), *map(malformed, range(10, 20)), TEST_EVENT])
    dlq_fixture.bring_to("succeeded", SUCCEEDED)
    dlq_fixture.bring_to("quarantined", QUARANTINED)
    dlq_fixture.bring_to("failed", MISSING)
    dlq_fixture.bring_to("failed", INVALID, code="stac_validation_failed")
    dlq_fixture.bring_to("in_progress", IN_PROGRESS)
    dlq_fixture.assert_sound()


def of_class(report: DeadLetterWork) -> Counter[tuple[DeadLetterClass, LetterOutcome]]:
    return Counter((message["class"], message["outcome"]) for message in report.messages)


@pytest.mark.clause("WSM-12", "RPL-06", "BEY-03")
@pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
def test_a_drain_processes_three_hundred_dead_letters_of_every_class_on_their_queue(dlq_fixture: DlqFixture) -> None:
    fill(dlq_fixture)
    steps: list[int] = []

    def step(report: DeadLetterWork) -> None:
        dlq_fixture.assert_sound()
        steps.append(len(report.messages))

    report = drain(dlq_fixture.pipeline, decision=DECISION, bounds=Bounds(batch_size=50), report=step)

    assert report.end is End.EMPTY
    assert report.exit_code is ExitCode.DONE
    assert of_class(report) == {
        (DeadLetterClass.DONE, LetterOutcome.DELETED): 51,
        (DeadLetterClass.FAILED, LetterOutcome.WAITS): 100,
        (DeadLetterClass.WAITING, LetterOutcome.WAITS): 50,
        (DeadLetterClass.UNKNOWN, LetterOutcome.WAITS): 100,
        (DeadLetterClass.UNREADABLE, LetterOutcome.KEPT): 20,
    }
    assert (report.units["created"], report.units["requeued"], report.units["quarantined"]) == (100, 100, 0)
    assert len(steps) == report.batches >= 7
    assert all(later - earlier <= 50 for earlier, later in pairwise(steps))
    ledger = dlq_fixture.pipeline.ledger
    for wal_id in dlq_fixture.wal_ids([MISSING[0], UNKNOWN[0]]):
        record = own_tx(ledger).get(wal_id)
        assert (record.status, record.lane) == (Status.PENDING, Lane.BULK)
    requeued = own_tx(ledger).get(dlq_fixture.wal_ids([MISSING[0]])[0])
    assert (requeued.replay_reason, requeued.replay_run_id) == ("dlq-drain", report.run_id)
    counted = dead_letters_counted(dlq_fixture)
    # The pipeline had received 210 of the messages. The drain processes 100 of failed and 100 of unknown units.
    assert counted == {
        (Total.DEAD_LETTERS, DATASET): 200,
        (Total.DEAD_LETTERS, ""): 10,
        (Total.DEAD_LETTERS_REPROCESSED, ""): 200,
    }
    # Every message is visible again, and a second drain repeats nothing.
    assert sorted(dlq_fixture.dead_bodies()) == sorted(
        dlq_fixture.bodies - {dlq_fixture.body(number) for number in (*SUCCEEDED, *QUARANTINED)} - {TEST_EVENT}
    )
    records = {wal_id: own_tx(ledger).get(wal_id) for wal_id in dlq_fixture.wal_ids(range(300))}
    second = drain(dlq_fixture.pipeline, decision=DECISION)
    assert second.units == {"created": 0, "requeued": 0, "quarantined": 0}
    assert of_class(second) == {
        (DeadLetterClass.WAITING, LetterOutcome.WAITS): 250,
        (DeadLetterClass.UNREADABLE, LetterOutcome.KEPT): 20,
    }
    assert {wal_id: own_tx(ledger).get(wal_id) for wal_id in records} == records
    assert set(dlq_fixture.requeues().values()) == {1}
    assert dead_letters_counted(dlq_fixture) == counted

    dlq_fixture.finish_everything()
    assert sorted(dlq_fixture.dead_bodies()) == sorted(malformed(number) for number in range(20))
    counts = dlq_fixture.pipeline.deliveries.counts()
    assert (counts[DeliveryState.DELETED], counts[DeliveryState.DEAD_LETTERED]) == (301, 20)
    rejections = dlq_fixture.pipeline.deliveries.rejected(limit=100)
    pipeline = dlq_fixture.pipeline
    bodies = {rejected_message(pipeline.deliveries, pipeline.landing, str(entry.message_id)) for entry in rejections}
    assert bodies == {malformed(number) for number in range(20)}
    entries = [
        entry
        for entry in own_tx(ledger.log).entries(action=GovernanceAction.DLQ_DRAIN, limit=100)
        if entry.details["run_id"] == report.run_id
    ]
    assert len(entries) == report.batches
    assert {(entry.actor, entry.change_ref) for entry in entries} == {("jane", "INC-7")}
    assert sum(len(entry.details["messages"]) for entry in entries) == 321


def dead_letters_counted(dlq_fixture: DlqFixture) -> dict[tuple[Total, str], float]:
    """Return the metrics of dead letters."""
    with dlq_fixture.pipeline.database.snapshot() as view:
        totals = kept_totals(view)
    names = {Total.DEAD_LETTERS, Total.DEAD_LETTERS_REPROCESSED}
    return {(total, subject): amount for (total, subject, _), amount in totals.items() if total in names}


@pytest.mark.clause("RPL-06")
def test_a_drain_processes_only_selected_letters_and_leaves_the_rest_visible(dlq_fixture: DlqFixture) -> None:
    dlq_fixture.receive_and_let_die([dlq_fixture.body(number) for number in range(12)])
    dlq_fixture.bring_to("failed", range(6))
    dlq_fixture.bring_to("failed", range(6, 12), code="stac_validation_failed")
    selection = LetterSelection(datasets=frozenset({DATASET}), error_codes=frozenset({"missing_object"}))
    report = drain(dlq_fixture.pipeline, decision=DECISION, selection=selection)
    assert report.outcomes == {LetterOutcome.WAITS: 6, LetterOutcome.LEFT: 6}
    assert dead_letters_counted(dlq_fixture) == {
        (Total.DEAD_LETTERS, DATASET): 12,
        (Total.DEAD_LETTERS_REPROCESSED, ""): 6,
    }
    assert dlq_fixture.requeues().keys() == set(dlq_fixture.wal_ids(range(6)))
    assert dlq_fixture.pipeline.dead_letters.depth().visible == 6
    counts = dlq_fixture.pipeline.deliveries.counts()
    assert (counts[DeliveryState.IN_FLIGHT], counts[DeliveryState.DEAD_LETTERED]) == (6, 6)
    dlq_fixture.assert_sound()


@pytest.mark.clause("RPL-06")
@pytest.mark.parametrize(
    ("bounds", "in_flight", "end", "drained"),
    [
        (Bounds(batch_size=7, max_batches=2), 100, End.MAX_BATCHES, 14),
        (Bounds(batch_size=10, limit=13), 100, End.LIMIT, 13),
        (Bounds(batch_size=100, limit=13), 100, End.LIMIT, 13),
        (Bounds(batch_size=10, limit=500), 100, End.EMPTY, 30),
        (Bounds(batch_size=10), 10, End.IN_FLIGHT, 10),
    ],
)
def test_a_drain_ends_at_its_limits(
    dlq_fixture: DlqFixture, bounds: Bounds, in_flight: int, end: End, drained: int
) -> None:
    dlq_fixture.bury([dlq_fixture.body(number) for number in range(30)])
    limited = reopened(dlq_fixture, max_in_flight_units=in_flight)
    report = drain(limited.pipeline, decision=DECISION, bounds=bounds)
    assert (report.end, report.units["created"]) == (end, drained)
    assert dlq_fixture.pipeline.dead_letters.depth().visible == 30 - drained
    limited.pipeline.close()


@pytest.mark.clause("RPL-06")
def test_a_drain_stops_when_the_repaired_error_recurs(dlq_fixture: DlqFixture) -> None:
    dlq_fixture.receive_and_let_die([dlq_fixture.body(number) for number in range(40)])
    dlq_fixture.bring_to("failed", range(40))
    rounds: list[DeadLetterWork] = []

    def fail_again(report: DeadLetterWork) -> None:
        rounds.append(report)
        pending = {unit.wal_id for unit in own_tx(dlq_fixture.pipeline.ledger).find(status=Status.PENDING, limit=40)}
        waiting = [number for number in range(40) if dlq_fixture.unit(number).wal_id in pending]
        dlq_fixture.bring_to("failed", waiting[:3])
        dlq_fixture.assert_sound()

    report = drain(
        dlq_fixture.pipeline, decision=DECISION, bounds=Bounds(batch_size=10), report=fail_again, stop_after=5
    )

    assert (report.end, report.exit_code) == (End.RECURRENCE, ExitCode.FINISHED_WITH_FAILURES)
    assert "missing_object" in report.detail
    # Three recurred after the first batch and three after the second, so there was no third batch.
    assert report.units["requeued"] == 20
    # The next drain stops likewise; a person can raise the limit.
    dlq_fixture.dead_bodies()
    second = drain(dlq_fixture.pipeline, decision=DECISION, bounds=Bounds(batch_size=40), stop_after=5)
    assert (second.end, second.units["requeued"]) == (End.RECURRENCE, 0)
    accepted = drain(dlq_fixture.pipeline, decision=DECISION, bounds=Bounds(batch_size=40), stop_after=None)
    assert accepted.end is End.EMPTY
    assert accepted.units["requeued"] == 20 + 3 * len(rounds)
    # A different error is not a recurrence.
    dlq_fixture.bring_to("failed", range(40), code="stac_validation_failed")
    dlq_fixture.dead_bodies()
    third = drain(dlq_fixture.pipeline, decision=DECISION, stop_after=1)
    # Recurring units have no attempt left.
    assert (third.end, third.units["requeued"]) == (End.EMPTY, 40 - 3 * len(rounds))


@pytest.mark.clause("RPL-06")
def test_a_drain_stops_when_a_unit_gives_another_result_than_before(dlq_fixture: DlqFixture) -> None:
    dlq_fixture.receive_and_let_die(bodies(dlq_fixture, range(3)))
    dlq_fixture.bring_to("succeeded", range(3))
    ledger = dlq_fixture.pipeline.ledger
    repeat_units(ledger, *dlq_fixture.wal_ids(range(3)))
    dlq_fixture.bring_to("failed", range(3))

    def work(_: DeadLetterWork) -> None:
        claimed = own_tx(ledger).claim(dataset=DATASET, partition=PARTITION, run_id="later", limit=10)
        own_tx(ledger).settle([another_result(unit) for unit in claimed], run_id="later")

    report = drain(dlq_fixture.pipeline, decision=DECISION, bounds=Bounds(batch_size=1), report=work)
    assert (report.end, report.units["requeued"]) == (End.MISMATCH, 1)
    assert report.detail == "1 drained units gave another result than an earlier success"
    assert report.exit_code is ExitCode.FINISHED_WITH_FAILURES


@pytest.mark.clause("WSM-12")
def test_a_failed_unit_without_attempts_left_is_quarantined_and_its_message_is_deleted(dlq_fixture: DlqFixture) -> None:
    dlq_fixture.receive_and_let_die([dlq_fixture.body(0), dlq_fixture.body(1)])
    dlq_fixture.bring_to("failed", [0, 1])
    strict = reopened(dlq_fixture, registry=with_retry(dlq_fixture.pipeline.registry, max_attempts=1))
    (group,) = plan(strict.pipeline, selection=LetterSelection())["groups"]
    assert (group["class"], group["no_replay"]) == (DeadLetterClass.FAILED, 2)
    moved = redrive(strict.pipeline, decision=DECISION)
    assert moved.outcomes == {LetterOutcome.LEFT: 2}
    report = drain(strict.pipeline, decision=DECISION)
    assert (report.units["requeued"], report.units["quarantined"], report.outcomes) == (
        0,
        2,
        {LetterOutcome.DELETED: 2},
    )
    record = own_tx(strict.pipeline.ledger).get(strict.wal_ids([0])[0])
    assert (record.status, record.last_error_code) == (Status.QUARANTINED, "missing_object")
    assert strict.dead_bodies() == []
    strict.assert_sound()
    strict.pipeline.close()


def test_a_dead_letter_of_a_switched_off_dataset_is_skipped(dlq_fixture: DlqFixture) -> None:
    dlq_fixture.bury([dlq_fixture.body(0), MALFORMED])
    dlq_fixture.pipeline.ledger.switches.engage(DATASET, DECISION)
    for act in (drain, redrive):
        report = act(dlq_fixture.pipeline, decision=DECISION)
        (unknown,) = [message for message in report.messages if message["class"] is DeadLetterClass.UNKNOWN]
        assert (unknown["outcome"], unknown["detail"]) == (LetterOutcome.LEFT, f"{DATASET} is switched off")
    assert own_tx(dlq_fixture.pipeline.ledger).counts() == {}
    assert len(dlq_fixture.dead_bodies()) == 2


NOT_NEW = set(DeadLetterClass) - {DeadLetterClass.UNKNOWN}


@pytest.mark.clause("SEC-04", "BEY-03")
def test_a_dead_letter_waits_for_its_certificate_and_a_forged_letter_gives_no_unit(dlq_fixture: DlqFixture) -> None:
    waiting, forged, genuine = (dlq_fixture.body(number) for number in range(3))
    dlq_fixture.bury([waiting, forged, genuine])
    explanations = {
        waiting: SenderVerdict(authenticity=Authenticity.UNKNOWN, detail="its certificate cannot be fetched"),
        forged: SenderVerdict(authenticity=Authenticity.INVALID, detail="the signature is not of this message"),
    }
    dlq_fixture.pipeline.signatures = Mock(
        verdicts=lambda messages, **_: [explanations.get(message.body, VERIFIED) for message in messages]
    )
    for act in (redrive, drain):
        report = act(dlq_fixture.pipeline, decision=DECISION, selection=LetterSelection(classes=frozenset(NOT_NEW)))
        (left,) = [message for message in report.messages if message["class"] is DeadLetterClass.WAITING]
        assert (left["outcome"], left["detail"]) == (LetterOutcome.LEFT, "its certificate cannot be fetched")
    assert len(dlq_fixture.dead_bodies()) == 3, "no letter is lost"
    report = drain(dlq_fixture.pipeline, decision=DECISION)
    assert report.units["created"] == 1
    assert {entry.reason_code for entry in dlq_fixture.pipeline.deliveries.rejected()} == {"signature_invalid"}
    assert dlq_fixture.pipeline.deliveries.counts()[DeliveryState.IGNORED] == 0
    explanations.clear()
    assert drain(dlq_fixture.pipeline, decision=DECISION).units["created"] == 2
    dlq_fixture.finish_everything()
    assert dlq_fixture.dead_bodies() == []
    dlq_fixture.assert_sound()


@pytest.mark.clause("RPL-06", "BEY-03")
def test_a_drain_records_the_units_of_a_partly_readable_message_and_keeps_the_message(dlq_fixture: DlqFixture) -> None:
    records = [event(0).record(), {"no": "event"}, event(1).record()]
    dlq_fixture.bury([json.dumps({"Records": records})])
    report = drain(dlq_fixture.pipeline, decision=DECISION)
    assert (report.units["created"], report.outcomes) == (2, {LetterOutcome.KEPT: 1})
    (message,) = report.messages
    assert (message["class"], message["error_code"]) == (DeadLetterClass.UNREADABLE, "missing_required_field")
    given_up = frozenset({message["message_id"]})
    early = discard(dlq_fixture.pipeline, decision=DECISION, selection=LetterSelection(message_ids=given_up))
    assert early.outcomes == {LetterOutcome.LEFT: 1}
    dlq_fixture.finish_everything()
    assert len(dlq_fixture.dead_bodies()) == 1
    late = discard(dlq_fixture.pipeline, decision=DECISION, selection=LetterSelection(message_ids=given_up))
    assert late.outcomes == {LetterOutcome.DISCARDED: 1}
    assert dlq_fixture.dead_bodies() == []
    dlq_fixture.assert_sound()


@pytest.mark.clause("RPL-06")
def test_a_discard_deletes_the_named_unreadable_letters_and_keeps_their_text(dlq_fixture: DlqFixture) -> None:
    dlq_fixture.bury([malformed(0), malformed(1), dlq_fixture.body(0)])
    named = {letter.message.body: letter.message.message_id for letter in look(dlq_fixture.pipeline)}
    selected = frozenset({named[malformed(0)], named[dlq_fixture.body(0)]})
    report = discard(dlq_fixture.pipeline, decision=DECISION, selection=LetterSelection(message_ids=selected))
    outcomes = {message["message_id"]: message["outcome"] for message in report.messages}
    assert outcomes[named[malformed(0)]] is LetterOutcome.DISCARDED
    assert outcomes[named[dlq_fixture.body(0)]] is LetterOutcome.LEFT
    assert report.unmet == {named[dlq_fixture.body(0)]}
    assert report.exit_code is ExitCode.FINISHED_WITH_FAILURES
    assert sorted(dlq_fixture.dead_bodies()) == sorted([malformed(1), dlq_fixture.body(0)])
    (rejection,) = dlq_fixture.pipeline.deliveries.rejected()
    assert rejection.reason_code == "malformed_json"
    (entry,) = own_tx(dlq_fixture.pipeline.ledger.log).entries(action=GovernanceAction.DLQ_DISCARD)
    assert entry.details["messages"] == [named[malformed(0)]]
    assert dlq_fixture.pipeline.landing.read(entry.details["landing_sha256"])[0].body == malformed(0)
    dlq_fixture.assert_sound()
    with pytest.raises(ConfigurationError):
        discard(dlq_fixture.pipeline, decision=DECISION, selection=LetterSelection(message_ids=frozenset()))


@pytest.mark.clause("RPL-04", "RPL-06", "BEY-03")
def test_a_plan_counts_every_class_and_a_redrive_moves_letters_that_intake_can_process(
    dlq_fixture: DlqFixture,
) -> None:
    fill(dlq_fixture)
    before, depth = every_row(dlq_fixture.pipeline.database), dlq_fixture.pipeline.dead_letters.depth()
    planned = plan(dlq_fixture.pipeline, selection=LetterSelection())
    shown = status(dlq_fixture.pipeline)
    assert {
        (group["class"], group["dataset"], group["error_code"]): (group["messages"], group["units"])
        for group in planned["groups"]
    } == {
        (DeadLetterClass.UNREADABLE, None, "malformed_json"): (20, 0),
        (DeadLetterClass.UNKNOWN, DATASET, None): (100, 100),
        (DeadLetterClass.FAILED, DATASET, "missing_object"): (70, 70),
        (DeadLetterClass.FAILED, DATASET, "stac_validation_failed"): (30, 30),
        (DeadLetterClass.WAITING, DATASET, None): (50, 50),
        (DeadLetterClass.DONE, DATASET, None): (30, 30),
        (DeadLetterClass.DONE, DATASET, "test"): (20, 20),
        (DeadLetterClass.DONE, None, None): (1, 0),
    }
    assert planned["looked_at"] == planned["selected"] == shown["visible"] == 321
    assert (shown["looked_at"], shown["max_receive_count"]) == (100, 1)
    assert shown["oldest_sent_at"] < shown["drops_at"]
    assert (shown["retention_seconds"], shown["ledger"][DeliveryState.REJECTED]) == (14 * 86_400, 10)
    for document in (planned, shown, *(letter.as_json() for letter in look(dlq_fixture.pipeline))):
        json.dumps(document)
    assert every_row(dlq_fixture.pipeline.database) == before
    assert dlq_fixture.pipeline.dead_letters.depth() == depth

    report = redrive(
        dlq_fixture.pipeline,
        decision=DECISION,
        bounds=Bounds(batch_size=50),
        report=lambda _: assert_conserved(dlq_fixture.pipeline),
    )

    assert report.outcomes == {LetterOutcome.MOVED: 200, LetterOutcome.LEFT: 121}
    assert dlq_fixture.pipeline.queue.depth().visible == 200
    assert dlq_fixture.pipeline.dead_letters.depth().visible == 121
    returned = dlq_fixture.pipeline.queue.look(1000, budget_seconds=30)
    assert sorted(message.body for message in returned) == sorted(bodies(dlq_fixture, [*MISSING, *INVALID, *UNKNOWN]))
    moved = {message["detail"] for message in report.messages if message["outcome"] is LetterOutcome.MOVED}
    assert moved == {f"message {message.message_id}" for message in returned}
    entries = own_tx(dlq_fixture.pipeline.ledger.log).entries(action=GovernanceAction.DLQ_REDRIVE, limit=100)
    assert sum(len(entry.details["messages"]) for entry in entries) == 200
    assert redrive(dlq_fixture.pipeline, decision=DECISION).outcomes == {LetterOutcome.LEFT: 121}


@pytest.mark.parametrize(
    ("deaf", "outcome"), [("queue", LetterOutcome.REFUSED), ("dead_letters", LetterOutcome.DOUBLED)]
)
def test_letters_refused_by_the_queue_stay_on_the_dead_letter_queue(
    dlq_fixture: DlqFixture, deaf: str, outcome: LetterOutcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    dlq_fixture.bury([dlq_fixture.body(number) for number in range(9)])
    pipeline = dlq_fixture.pipeline
    send, delete = pipeline.queue.send, pipeline.dead_letters.delete

    def send_most(bodies: Any) -> Any:
        return [
            outcome if number % 3 else SendOutcome(refusal="InternalError")
            for number, outcome in enumerate(send(bodies))
        ]

    def delete_most(receipts: Any) -> list[str]:
        return [*delete([receipt for number, receipt in enumerate(receipts) if number % 3]), *list(receipts)[::3]]

    target = getattr(pipeline, deaf)
    monkeypatch.setattr(target, *(("send", send_most) if deaf == "queue" else ("delete", delete_most)))
    report = redrive(pipeline, decision=DECISION, bounds=Bounds(max_batches=1))
    assert report.outcomes == {LetterOutcome.MOVED: 6, outcome: 3}
    assert report.exit_code is ExitCode.FINISHED_WITH_FAILURES
    assert pipeline.dead_letters.depth().visible == 3
    dlq_fixture.assert_sound()


@pytest.mark.clause("RPL-06")
def test_in_prod_dead_letter_actions_need_a_change_reference(dlq_fixture: DlqFixture) -> None:
    prod = reopened(dlq_fixture, env=Environment.PROD)
    act: Callable[..., DeadLetterWork]
    for act in (partial(discard, selection=LetterSelection(message_ids=frozenset({"some-id"}))), redrive, drain):
        dlq_fixture.bury([dlq_fixture.body(0)])
        waits = prod.pipeline.dead_letters.depth().visible
        with pytest.raises(UnattributedDecisionError):
            act(prod.pipeline, decision=Decision(actor="jane", reason="tidying up"))
        assert prod.pipeline.dead_letters.depth().visible == waits > 0
        assert act(prod.pipeline, decision=DECISION).batches == 1
    prod.pipeline.close()


def test_a_dead_letter_queue_with_a_redrive_policy_of_its_own_is_refused(dlq_fixture: DlqFixture) -> None:
    dlq_fixture.bury([dlq_fixture.body(0)])
    policy = {"deadLetterTargetArn": dlq_fixture.queues.queue_arn, "maxReceiveCount": 1}
    dlq_fixture.cloud.client("sqs").set_queue_attributes(
        QueueUrl=dlq_fixture.queues.dlq_url, Attributes={"RedrivePolicy": json.dumps(policy)}
    )
    for use in (status, look, lambda pipeline: drain(pipeline, decision=DECISION)):
        with pytest.raises(RefusedError, match="redrive policy of its own") as caught:
            use(dlq_fixture.pipeline)
        assert caught.value.exit_code is ExitCode.REFUSED
    same = reopened(dlq_fixture, sqs_dlq_queue=dlq_fixture.pipeline.settings.sqs_primary_queue)
    with pytest.raises(RefusedError, match="is the primary queue"):
        look(same.pipeline)
    same.pipeline.close()


def test_a_ledger_with_unaccounted_records_refuses_a_drain(dlq_fixture: DlqFixture) -> None:
    dlq_fixture.receive_and_let_die([dlq_fixture.body(0)])
    with dlq_fixture.pipeline.database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE nodd_wal_deliveries SET state = 'rejected'")
    with pytest.raises(RefusedError, match="does not balance"):
        drain(dlq_fixture.pipeline, decision=DECISION)
    assert dlq_fixture.pipeline.dead_letters.depth().visible == 1


@pytest.mark.clause("WSM-12", "BEY-03")
def test_a_message_whose_deletion_had_no_effect_is_recognised_as_done_and_deleted(dlq_fixture: DlqFixture) -> None:
    dlq_fixture.receive_and_let_die([dlq_fixture.body(0)])
    dlq_fixture.bring_to("succeeded", [0])
    # SQS accepts a deletion with a receipt of the former queue, and deletes nothing.
    (row,) = dlq_fixture.ask("SELECT message_id FROM nodd_wal_deliveries")
    dlq_fixture.pipeline.deliveries.mark_deleted([row.message_id])
    (letter,) = look(dlq_fixture.pipeline)
    assert letter.kind is DeadLetterClass.DONE
    assert drain(dlq_fixture.pipeline, decision=DECISION).outcomes == {LetterOutcome.DELETED: 1}
    assert dlq_fixture.dead_bodies() == []


def test_without_a_dead_letter_queue_current_messages_are_still_acknowledged(dlq_fixture: DlqFixture) -> None:
    dlq_fixture.bury([dlq_fixture.body(0)])
    drain(dlq_fixture.pipeline, decision=DECISION)
    dlq_fixture.pipeline.queue.send([dlq_fixture.body(1)])
    received = dlq_fixture.pipeline.queue.receive(1, budget_seconds=20)
    record(dlq_fixture.pipeline, received, ALL_ON)
    dlq_fixture.bring_to("succeeded", [0, 1])
    gone = reopened(dlq_fixture)
    gone.pipeline.connect_dead_letters = lambda chosen: Queue(
        dlq_fixture.cloud.client("sqs"), name="gone", threads=chosen.receive_threads
    )
    assert gone.pipeline.acknowledger.acknowledge() == 1
    assert dlq_fixture.pipeline.acknowledger.acknowledge() == 1
    gone.pipeline.close()


@pytest.mark.clause("SEC-05")
def test_a_drain_keeps_letters_refused_by_the_database_and_processes_the_rest(dlq_fixture: DlqFixture) -> None:
    culprit = dlq_fixture.unit(2)
    refuse_rows(dlq_fixture.pipeline.database, "nodd_wal_records", f"NEW.object_uri = '{culprit.object_uri}'")
    dlq_fixture.bury([dlq_fixture.body(1), dlq_fixture.body(2, 3), dlq_fixture.body(4)])
    report = drain(dlq_fixture.pipeline, decision=DECISION)
    outcomes = Counter(message["outcome"] for message in report.messages)
    assert (report.units["created"], outcomes) == (3, {LetterOutcome.WAITS: 2, LetterOutcome.KEPT: 1})
    ledger = dlq_fixture.pipeline.ledger
    assert {unit.wal_id for unit in own_tx(ledger).find(status=Status.PENDING)} == set(dlq_fixture.wal_ids([1, 3, 4]))
    (rejection,) = dlq_fixture.pipeline.deliveries.rejected()
    assert (rejection.reason_code, rejection.record_index) == ("database_refused", 0)
    counts = dlq_fixture.pipeline.deliveries.counts()
    assert (counts[DeliveryState.IN_FLIGHT], counts[DeliveryState.DEAD_LETTERED]) == (2, 1)
    dlq_fixture.assert_sound()


@pytest.mark.clause("BEY-09")
def test_a_dead_letter_of_a_chunk_closes_the_previous_volume(dlq_fixture: DlqFixture) -> None:
    pipeline = dlq_fixture.pipeline
    starts = (START, START + timedelta(minutes=6))
    first, second = (good(BUCKET, *make_nexrad_chunks(site="KTWX", start=start)[0]) for start in starts)
    record(pipeline, [notice(pipeline, first)], ALL_ON)
    dlq_fixture.bury([notice(pipeline, second).body])
    assert drain(pipeline, decision=DECISION).units["created"] == 1
    pending = {(unit.object_uri, unit.object_version) for unit in own_tx(pipeline.ledger).find(status=Status.PENDING)}
    assert pending == {(first.uri, None), (first.uri, CLOSED), (second.uri, None)}
    dlq_fixture.assert_sound()
