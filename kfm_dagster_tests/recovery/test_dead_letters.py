"""Dead letters: told apart, planned, drained, moved and given up, with nothing lost on the way."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.errors import ConfigurationError, ExitCode
from kfm_dagster.governance.log import Decision, GovernanceAction, UnattributedDecisionError
from kfm_dagster.ingest.intake import record
from kfm_dagster.ledger.deliveries import DeliveryState
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.notifications.sqs import Queue
from kfm_dagster.notifications.verdict import VERIFIED, Authenticity, SenderVerdict
from kfm_dagster.recovery.dead_letters.batches import Bounds, DeadLetterReport, End, LetterOutcome
from kfm_dagster.recovery.dead_letters.drain import drain
from kfm_dagster.recovery.dead_letters.letters import DeadLetterClass, DeadLetterError, LetterSelection
from kfm_dagster.recovery.dead_letters.moves import discard, redrive
from kfm_dagster.recovery.dead_letters.plan import look, plan, status
from kfm_dagster.settings import Environment
from kfm_dagster_tests.databases import refuse_rows
from kfm_dagster_tests.integration.chain import assert_conserved
from kfm_dagster_tests.recovery.graveyard import (
    DATASET,
    DECISION,
    MALFORMED,
    PARTITION,
    TEST_EVENT,
    Graveyard,
    event,
    one_attempt_only,
    reopened,
)
from kfm_dagster_tests.recovery.replays import another_result

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


def bodies(graveyard: Graveyard, numbers: Iterable[int]) -> list[str]:
    return [graveyard.body(number) for number in numbers]


def fill(graveyard: Graveyard) -> None:
    """More than three hundred dead letters: most were received and died, some were never seen."""
    graveyard.receive_and_let_die([*bodies(graveyard, range(200)), *map(malformed, range(10))])
    graveyard.bury([*bodies(graveyard, UNKNOWN), *map(malformed, range(10, 20)), TEST_EVENT])
    graveyard.bring_to("succeeded", SUCCEEDED)
    graveyard.bring_to("quarantined", QUARANTINED)
    graveyard.bring_to("failed", MISSING)
    graveyard.bring_to("failed", INVALID, code="stac_validation_failed")
    graveyard.bring_to("in_progress", IN_PROGRESS)
    graveyard.assert_sound()


def of_class(report: DeadLetterReport) -> Counter[tuple[DeadLetterClass, LetterOutcome]]:
    return Counter((message.kind, message.outcome) for message in report.messages)


def everything(graveyard: Graveyard) -> dict[str, list[Any]]:
    """Every row of every table."""
    names = {
        "sqlite": "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'",
        "postgresql": "SELECT tablename FROM pg_tables WHERE schemaname = 'public'",
    }[graveyard.pipeline.database.dialect]
    tables = sorted(row[0] for row in graveyard.ask(names))
    return {table: sorted(map(repr, graveyard.ask(f"SELECT * FROM {table}"))) for table in tables}


@pytest.mark.clause("WSM-12", "RPL-06", "BEY-03")
def test_a_drain_works_three_hundred_dead_letters_of_every_class_where_they_lie(graveyard: Graveyard) -> None:
    fill(graveyard)
    steps: list[DeadLetterReport] = []

    def step(report: DeadLetterReport) -> None:
        graveyard.assert_sound()
        steps.append(report)

    report = drain(graveyard.pipeline, decision=DECISION, bounds=Bounds(batch_size=50), report=step)

    assert report.end is End.EMPTY
    assert report.exit_code is ExitCode.DONE
    assert of_class(report) == {
        (DeadLetterClass.DONE, LetterOutcome.DELETED): 51,
        (DeadLetterClass.FAILED, LetterOutcome.WAITS): 100,
        (DeadLetterClass.WAITING, LetterOutcome.WAITS): 50,
        (DeadLetterClass.UNKNOWN, LetterOutcome.WAITS): 100,
        (DeadLetterClass.UNREADABLE, LetterOutcome.KEPT): 20,
    }
    assert (report.created, report.readmitted, report.quarantined) == (100, 100, 0)
    assert len(steps) == report.batches >= 7
    assert all(len(later.messages) - len(earlier.messages) <= 50 for earlier, later in pairwise(steps))
    ledger = graveyard.pipeline.ledger
    for wal_id in graveyard.wal_ids([MISSING[0], UNKNOWN[0]]):
        record = ledger.get(wal_id)
        assert record is not None
        assert (record.status, record.lane) == (Status.PENDING, Lane.BULK)
    readmitted = ledger.get(graveyard.wal_ids([MISSING[0]])[0])
    assert readmitted is not None
    assert (readmitted.replay_reason, readmitted.replay_run_id) == ("dlq-drain", report.run_id)
    assert sorted(graveyard.dead_bodies()) == sorted(
        graveyard.bodies - {graveyard.body(number) for number in (*SUCCEEDED, *QUARANTINED)} - {TEST_EVENT}
    )

    graveyard.finish_everything()
    assert sorted(graveyard.dead_bodies()) == sorted(malformed(number) for number in range(20))
    counts = graveyard.pipeline.deliveries.counts()
    assert (counts[DeliveryState.DELETED], counts[DeliveryState.DEAD_LETTERED]) == (301, 20)
    kept = graveyard.pipeline.deliveries.rejected(limit=100)
    bodies = {graveyard.pipeline.deliveries.rejected_body(str(entry.message_id)) for entry in kept}
    assert bodies == {malformed(number) for number in range(20)}
    entries = ledger.log.entries(action=GovernanceAction.DLQ_DRAIN, limit=100)
    assert len(entries) == report.batches
    assert {(entry.actor, entry.change_ref, entry.details["run_id"]) for entry in entries} == {
        ("jane", "INC-7", report.run_id)
    }
    assert sum(len(entry.details["messages"]) for entry in entries) == 321


@pytest.mark.clause("RPL-06", "RPL-04")
def test_a_plan_says_what_a_drain_would_take_and_changes_nothing(graveyard: Graveyard) -> None:
    fill(graveyard)
    before, depth = everything(graveyard), graveyard.pipeline.dead_letters.depth()
    planned = plan(graveyard.pipeline, selection=LetterSelection())
    found = status(graveyard.pipeline)

    assert {
        (group.kind, group.dataset, group.error_code): (group.messages, group.units) for group in planned.groups
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
    assert planned.looked_at == planned.selected == found.depth.visible == 321
    assert found.looked_at == 100
    assert found.oldest is not None
    assert found.max_receive_count == 1
    assert (found.retention.days, found.ledger[DeliveryState.REJECTED]) == (14, 10)
    for document in (planned.as_json(), found.as_json(), *(letter.as_json() for letter in look(graveyard.pipeline))):
        json.dumps(document)
    assert everything(graveyard) == before
    assert graveyard.pipeline.dead_letters.depth() == depth


@pytest.mark.clause("RPL-06")
def test_a_second_drain_does_nothing_twice(graveyard: Graveyard) -> None:
    fill(graveyard)
    drain(graveyard.pipeline, decision=DECISION)
    graveyard.dead_bodies()  # lets every message be received again
    records = {wal_id: graveyard.pipeline.ledger.get(wal_id) for wal_id in graveyard.wal_ids(range(300))}

    report = drain(graveyard.pipeline, decision=DECISION)

    assert (report.created, report.readmitted, report.quarantined) == (0, 0, 0)
    assert of_class(report) == {
        (DeadLetterClass.WAITING, LetterOutcome.WAITS): 250,
        (DeadLetterClass.UNREADABLE, LetterOutcome.KEPT): 20,
    }
    assert {wal_id: graveyard.pipeline.ledger.get(wal_id) for wal_id in records} == records
    assert set(graveyard.readmissions().values()) == {1}
    graveyard.finish_everything()
    assert len(graveyard.dead_bodies()) == 20


@pytest.mark.clause("RPL-06")
def test_a_drain_takes_what_is_selected_and_leaves_the_rest_to_be_found(graveyard: Graveyard) -> None:
    graveyard.receive_and_let_die([graveyard.body(number) for number in range(12)])
    graveyard.bring_to("failed", range(6))
    graveyard.bring_to("failed", range(6, 12), code="stac_validation_failed")
    selection = LetterSelection(datasets=frozenset({DATASET}), error_codes=frozenset({"missing_object"}))
    report = drain(graveyard.pipeline, decision=DECISION, selection=selection)
    assert report.outcomes == {LetterOutcome.WAITS: 6, LetterOutcome.LEFT: 6}
    assert graveyard.readmissions().keys() == set(graveyard.wal_ids(range(6)))
    assert graveyard.pipeline.dead_letters.depth().visible == 6
    counts = graveyard.pipeline.deliveries.counts()
    assert (counts[DeliveryState.IN_FLIGHT], counts[DeliveryState.DEAD_LETTERED]) == (6, 6)
    graveyard.assert_sound()


@pytest.mark.parametrize(
    ("bounds", "end", "drained"),
    [
        (Bounds(batch_size=7, max_batches=2), End.MAX_BATCHES, 14),
        (Bounds(batch_size=10, limit=13), End.LIMIT, 13),
        (Bounds(batch_size=100, limit=13), End.LIMIT, 13),
        (Bounds(batch_size=10, limit=500), End.EMPTY, 30),
    ],
)
def test_a_drain_ends_at_its_bounds(graveyard: Graveyard, bounds: Bounds, end: End, drained: int) -> None:
    graveyard.bury([graveyard.body(number) for number in range(30)])
    report = drain(graveyard.pipeline, decision=DECISION, bounds=bounds)
    assert (report.end, report.created) == (end, drained)
    assert graveyard.pipeline.dead_letters.depth().visible == 30 - drained


@pytest.mark.parametrize("bad", [{"batch_size": 0}, {"batch_size": 1001}, {"max_batches": 0}, {"limit": 0}])
def test_bounds_that_bound_nothing_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match="out of bounds"):
        Bounds(**bad)


@pytest.mark.clause("RPL-06")
def test_a_drain_keeps_within_what_may_be_in_flight(graveyard: Graveyard) -> None:
    graveyard.bury([graveyard.body(number) for number in range(30)])
    small = reopened(graveyard, max_in_flight_units=10)
    report = drain(small.pipeline, decision=DECISION, bounds=Bounds(batch_size=10))
    assert (report.end, report.created) == (End.IN_FLIGHT, 10)
    assert graveyard.pipeline.dead_letters.depth().visible == 20
    small.pipeline.close()


@pytest.mark.clause("RPL-06")
def test_a_drain_stops_when_the_error_that_it_was_to_repair_comes_back(graveyard: Graveyard) -> None:
    graveyard.receive_and_let_die([graveyard.body(number) for number in range(40)])
    graveyard.bring_to("failed", range(40))
    rounds: list[DeadLetterReport] = []

    def fail_again(report: DeadLetterReport) -> None:
        rounds.append(report)
        pending = graveyard.readmissions().keys()
        numbers = [number for number in range(40) if graveyard.wal_ids([number])[0] in pending]
        waiting = [n for n in numbers if _status(graveyard, n) is Status.PENDING]
        graveyard.bring_to("failed", waiting[:3])
        graveyard.assert_sound()

    report = drain(graveyard.pipeline, decision=DECISION, bounds=Bounds(batch_size=10), report=fail_again, stop_after=5)

    assert (report.end, report.exit_code) == (End.RECURRENCE, ExitCode.FINISHED_WITH_FAILURES)
    assert report.detail is not None
    assert "missing_object" in report.detail
    # Three came back after the first batch and three after the second, so there was no third.
    assert report.readmitted == 20
    # The next drain finds the same; a person may insist.
    graveyard.dead_bodies()
    again = drain(graveyard.pipeline, decision=DECISION, bounds=Bounds(batch_size=40), stop_after=5)
    assert (again.end, again.readmitted) == (End.RECURRENCE, 0)
    accepted = drain(graveyard.pipeline, decision=DECISION, bounds=Bounds(batch_size=40), stop_after=None)
    assert accepted.end is End.EMPTY
    assert accepted.readmitted == 20 + 3 * len(rounds)


def _status(graveyard: Graveyard, number: int) -> Status:
    record = graveyard.pipeline.ledger.get(graveyard.wal_ids([number])[0])
    assert record is not None
    return record.status


@pytest.mark.clause("RPL-06")
def test_a_drain_stops_when_a_drained_unit_gives_another_result_than_before(graveyard: Graveyard) -> None:
    graveyard.receive_and_let_die(bodies(graveyard, range(3)))
    graveyard.bring_to("succeeded", range(3))
    ledger = graveyard.pipeline.ledger
    versions = dict.fromkeys(graveyard.wal_ids(range(3)), 3)
    ledger.override(versions, from_status=Status.SUCCEEDED, action=GovernanceAction.REPEAT, decision=DECISION)
    graveyard.bring_to("failed", range(3))

    def work(_: DeadLetterReport) -> None:
        claimed = ledger.claim(dataset=DATASET, partition=PARTITION, run_id="later", limit=10)
        ledger.settle([another_result(unit) for unit in claimed], run_id="later")

    report = drain(graveyard.pipeline, decision=DECISION, bounds=Bounds(batch_size=1), report=work)
    assert (report.end, report.readmitted) == (End.MISMATCH, 1)
    assert report.detail == "1 drained units gave another result than an earlier success"
    assert report.exit_code is ExitCode.FINISHED_WITH_FAILURES


def test_another_error_than_before_is_no_recurrence(graveyard: Graveyard) -> None:
    graveyard.receive_and_let_die([graveyard.body(number) for number in range(8)])
    graveyard.bring_to("failed", range(8))
    drain(graveyard.pipeline, decision=DECISION, stop_after=1)
    graveyard.bring_to("failed", range(8), code="stac_validation_failed")
    graveyard.dead_bodies()
    report = drain(graveyard.pipeline, decision=DECISION, stop_after=1)
    assert (report.end, report.readmitted) == (End.EMPTY, 8)


@pytest.mark.clause("WSM-12")
def test_a_failed_unit_that_no_policy_replays_is_quarantined_and_its_message_deleted(graveyard: Graveyard) -> None:
    graveyard.receive_and_let_die([graveyard.body(0), graveyard.body(1)])
    graveyard.bring_to("failed", [0, 1])
    strict = reopened(graveyard, registry=one_attempt_only(graveyard.pipeline.registry))
    (group,) = plan(strict.pipeline, selection=LetterSelection()).groups
    assert (group.kind, group.no_replay) == (DeadLetterClass.FAILED, 2)
    moved = redrive(strict.pipeline, decision=DECISION)
    assert moved.outcomes == {LetterOutcome.LEFT: 2}
    report = drain(strict.pipeline, decision=DECISION)
    assert (report.readmitted, report.quarantined, report.outcomes) == (0, 2, {LetterOutcome.DELETED: 2})
    record = strict.pipeline.ledger.get(strict.wal_ids([0])[0])
    assert record is not None
    assert (record.status, record.last_error_code) == (Status.QUARANTINED, "missing_object")
    assert strict.dead_bodies() == []
    strict.assert_sound()
    strict.pipeline.close()


def test_a_dead_letter_of_a_dataset_that_is_switched_off_is_left_alone(graveyard: Graveyard) -> None:
    graveyard.bury([graveyard.body(0), MALFORMED])
    graveyard.pipeline.ledger.switches.engage(DATASET, DECISION)
    for act in (drain, redrive):
        report = act(graveyard.pipeline, decision=DECISION)
        (left,) = [message for message in report.messages if message.kind is DeadLetterClass.UNKNOWN]
        assert (left.outcome, left.detail) == (LetterOutcome.LEFT, f"{DATASET} is switched off")
    assert graveyard.pipeline.ledger.counts() == {}
    assert len(graveyard.dead_bodies()) == 2


NOT_NEW = set(DeadLetterClass) - {DeadLetterClass.UNKNOWN}


class _Verdicts:
    """Says of each body what it is told; of any other, that it is verified."""

    def __init__(self, said: dict[str, SenderVerdict]) -> None:
        self.said = said

    def verdicts(self, messages: Sequence[SqsMessage], *, verified: Collection[str] = ()) -> list[SenderVerdict]:
        return [self.said.get(message.body, VERIFIED) for message in messages]


@pytest.mark.clause("SEC-04", "BEY-03")
def test_a_dead_letter_waits_for_its_certificate_and_a_forged_one_gives_no_unit(graveyard: Graveyard) -> None:
    waiting, forged, genuine = (graveyard.body(number) for number in range(3))
    graveyard.bury([waiting, forged, genuine])
    said = {
        waiting: SenderVerdict(authenticity=Authenticity.UNKNOWN, detail="its certificate cannot be fetched"),
        forged: SenderVerdict(authenticity=Authenticity.INVALID, detail="the signature is not of this message"),
    }
    graveyard.pipeline.signatures = _Verdicts(said)
    for act in (redrive, drain):
        report = act(graveyard.pipeline, decision=DECISION, selection=LetterSelection(classes=frozenset(NOT_NEW)))
        (left,) = [message for message in report.messages if message.kind is DeadLetterClass.WAITING]
        assert (left.outcome, left.detail) == (LetterOutcome.LEFT, "its certificate cannot be fetched")
    assert len(graveyard.dead_bodies()) == 3, "nothing of them is lost"
    report = drain(graveyard.pipeline, decision=DECISION)
    assert report.created == 1
    assert {entry.reason_code for entry in graveyard.pipeline.deliveries.rejected()} == {"signature_invalid"}
    assert graveyard.pipeline.deliveries.counts()[DeliveryState.IGNORED] == 0
    said.clear()
    assert drain(graveyard.pipeline, decision=DECISION).created == 2
    graveyard.finish_everything()
    assert graveyard.dead_bodies() == []
    graveyard.assert_sound()


@pytest.mark.clause("RPL-06", "BEY-03")
def test_a_message_that_is_half_readable_has_its_units_drained_and_stays_for_a_person(graveyard: Graveyard) -> None:
    records = [event(0).record(), {"no": "event"}, event(1).record()]
    graveyard.bury([json.dumps({"Records": records})])
    report = drain(graveyard.pipeline, decision=DECISION)
    assert (report.created, report.outcomes) == (2, {LetterOutcome.KEPT: 1})
    (message,) = report.messages
    assert (message.kind, message.error_code) == (DeadLetterClass.UNREADABLE, "missing_required_field")
    given_up = frozenset({message.message_id})
    early = discard(graveyard.pipeline, decision=DECISION, message_ids=given_up)
    assert early.outcomes == {LetterOutcome.LEFT: 1}
    graveyard.finish_everything()
    assert len(graveyard.dead_bodies()) == 1
    late = discard(graveyard.pipeline, decision=DECISION, message_ids=given_up)
    assert late.outcomes == {LetterOutcome.DISCARDED: 1}
    assert graveyard.dead_bodies() == []
    graveyard.assert_sound()


@pytest.mark.clause("RPL-06")
def test_a_discard_takes_the_unreadable_ones_that_are_named_and_keeps_what_they_said(graveyard: Graveyard) -> None:
    graveyard.bury([malformed(0), malformed(1), graveyard.body(0)])
    named = {letter.message.body: letter.message.message_id for letter in look(graveyard.pipeline)}
    wanted = frozenset({named[malformed(0)], named[graveyard.body(0)]})
    report = discard(graveyard.pipeline, decision=DECISION, message_ids=wanted)
    outcomes = {message.message_id: message.outcome for message in report.messages}
    assert outcomes[named[malformed(0)]] is LetterOutcome.DISCARDED
    assert outcomes[named[graveyard.body(0)]] is LetterOutcome.LEFT
    assert report.unmet == {named[graveyard.body(0)]}
    assert report.exit_code is ExitCode.FINISHED_WITH_FAILURES
    assert sorted(graveyard.dead_bodies()) == sorted([malformed(1), graveyard.body(0)])
    (kept,) = graveyard.pipeline.deliveries.rejected()
    assert kept.reason_code == "malformed_json"
    assert graveyard.pipeline.deliveries.rejected_body(str(kept.message_id)) == malformed(0)
    (entry,) = graveyard.pipeline.ledger.log.entries(action=GovernanceAction.DLQ_DISCARD)
    assert entry.details["messages"] == [named[malformed(0)]]
    assert graveyard.pipeline.landing.read(entry.details["landing_sha256"])[0].body == malformed(0)
    graveyard.assert_sound()
    with pytest.raises(ConfigurationError):
        discard(graveyard.pipeline, decision=DECISION, message_ids=frozenset())


@pytest.mark.clause("RPL-06", "BEY-03")
def test_a_redrive_moves_what_intake_can_work_on_and_nothing_else(graveyard: Graveyard) -> None:
    fill(graveyard)
    report = redrive(
        graveyard.pipeline,
        decision=DECISION,
        bounds=Bounds(batch_size=50),
        report=lambda _: assert_conserved(graveyard.pipeline),
    )

    assert report.outcomes == {LetterOutcome.MOVED: 200, LetterOutcome.LEFT: 121}
    assert graveyard.pipeline.queue.depth().visible == 200
    assert graveyard.pipeline.dead_letters.depth().visible == 121
    returned = graveyard.pipeline.queue.look(1000, budget_seconds=30)
    assert sorted(message.body for message in returned) == sorted(bodies(graveyard, [*MISSING, *INVALID, *UNKNOWN]))
    moved = {message.detail for message in report.messages if message.outcome is LetterOutcome.MOVED}
    assert moved == {f"message {message.message_id}" for message in returned}
    entries = graveyard.pipeline.ledger.log.entries(action=GovernanceAction.DLQ_REDRIVE, limit=100)
    assert sum(len(entry.details["messages"]) for entry in entries) == 200
    assert redrive(graveyard.pipeline, decision=DECISION).outcomes == {LetterOutcome.LEFT: 121}


class HalfDeaf(Queue):
    """A queue that does not take every third message, or every third deletion."""

    def __init__(self, queue: Queue, *, sends: bool) -> None:
        super().__init__(queue._client, name=queue.name, threads=queue._threads)
        self._sends = sends

    def send(self, bodies: Any) -> Any:
        sent = super().send(bodies)
        if not self._sends:
            return sent
        return [
            outcome if number % 3 else type(outcome)(refusal="InternalError") for number, outcome in enumerate(sent)
        ]

    def delete(self, receipts: Any) -> list[str]:
        refused = [] if self._sends else list(receipts)[::3]
        return [*super().delete([receipt for receipt in receipts if receipt not in refused]), *refused]


@pytest.mark.parametrize(
    ("deaf", "outcome"), [("queue", LetterOutcome.REFUSED), ("dead_letters", LetterOutcome.DOUBLED)]
)
def test_what_a_queue_does_not_take_stays_on_the_dead_letter_queue(
    graveyard: Graveyard, deaf: str, outcome: LetterOutcome
) -> None:
    graveyard.bury([graveyard.body(number) for number in range(9)])
    pipeline = graveyard.pipeline
    setattr(pipeline, deaf, HalfDeaf(getattr(pipeline, deaf), sends=deaf == "queue"))
    report = redrive(pipeline, decision=DECISION, bounds=Bounds(max_batches=1))
    assert report.outcomes == {LetterOutcome.MOVED: 6, outcome: 3}
    assert report.exit_code is ExitCode.FINISHED_WITH_FAILURES
    assert pipeline.dead_letters.depth().visible == 3
    graveyard.assert_sound()


@pytest.mark.clause("RPL-06")
@pytest.mark.parametrize("act", [drain, redrive, partial(discard, message_ids=frozenset({"some-id"}))])
def test_in_prod_nothing_is_done_without_a_change_reference(graveyard: Graveyard, act: Callable[..., Any]) -> None:
    graveyard.bury([graveyard.body(0)])
    prod = reopened(graveyard, env=Environment.PROD)
    with pytest.raises(UnattributedDecisionError):
        act(prod.pipeline, decision=Decision(actor="jane", reason="tidying up"))
    assert prod.pipeline.dead_letters.depth().visible == 1
    assert act(prod.pipeline, decision=DECISION).batches == 1
    prod.pipeline.close()


def test_a_queue_that_looking_would_empty_is_refused(graveyard: Graveyard) -> None:
    graveyard.bury([graveyard.body(0)])
    policy = {"deadLetterTargetArn": graveyard.queues.queue_arn, "maxReceiveCount": 1}
    graveyard.cloud.client("sqs").set_queue_attributes(
        QueueUrl=graveyard.queues.dlq_url, Attributes={"RedrivePolicy": json.dumps(policy)}
    )
    for use in (status, look, lambda pipeline: drain(pipeline, decision=DECISION)):
        with pytest.raises(DeadLetterError, match="redrive policy of its own") as caught:
            use(graveyard.pipeline)
        assert caught.value.exit_code is ExitCode.REFUSED
    same = reopened(graveyard, sqs_dlq_queue=graveyard.pipeline.settings.sqs_primary_queue)
    with pytest.raises(DeadLetterError, match="is the primary queue"):
        look(same.pipeline)
    same.pipeline.close()


def test_a_ledger_that_has_lost_something_is_not_drained_into(graveyard: Graveyard) -> None:
    graveyard.receive_and_let_die([graveyard.body(0)])
    with graveyard.pipeline.database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE nodd_wal_deliveries SET state = 'rejected'")
    with pytest.raises(DeadLetterError, match="does not balance"):
        drain(graveyard.pipeline, decision=DECISION)
    assert graveyard.pipeline.dead_letters.depth().visible == 1


@pytest.mark.clause("WSM-12", "BEY-03")
def test_a_message_that_was_acknowledged_in_vain_is_found_done_and_deleted(graveyard: Graveyard) -> None:
    graveyard.receive_and_let_die([graveyard.body(0)])
    graveyard.bring_to("succeeded", [0])
    # SQS takes a deletion by the receipt of the queue that the message has left, and deletes nothing.
    (row,) = graveyard.ask("SELECT message_id FROM nodd_wal_deliveries")
    graveyard.pipeline.deliveries.mark_deleted([row.message_id])
    (letter,) = look(graveyard.pipeline)
    assert letter.kind is DeadLetterClass.DONE
    assert drain(graveyard.pipeline, decision=DECISION).outcomes == {LetterOutcome.DELETED: 1}
    assert graveyard.dead_bodies() == []


def test_without_its_dead_letter_queue_the_pipeline_acknowledges_what_came_today(graveyard: Graveyard) -> None:
    graveyard.bury([graveyard.body(0)])
    drain(graveyard.pipeline, decision=DECISION)
    graveyard.pipeline.queue.send([graveyard.body(1)])
    taken = graveyard.pipeline.queue.receive(1, budget_seconds=20)
    record(graveyard.pipeline, taken)
    graveyard.bring_to("succeeded", [0, 1])
    gone = reopened(graveyard)
    gone.pipeline.connect_dead_letters = lambda chosen: Queue(
        graveyard.cloud.client("sqs"), name="gone", threads=chosen.receive_threads
    )
    assert gone.pipeline.acknowledge() == 1
    assert graveyard.pipeline.acknowledge() == 1
    gone.pipeline.close()


@pytest.mark.clause("SEC-05")
def test_a_drain_keeps_what_the_database_refuses_and_works_on_the_rest(graveyard: Graveyard) -> None:
    culprit = graveyard.unit(2)
    refuse_rows(graveyard.pipeline.database, "nodd_wal_records", f"NEW.object_uri = '{culprit.object_uri}'")
    graveyard.bury([graveyard.body(1), graveyard.body(2, 3), graveyard.body(4)])
    report = drain(graveyard.pipeline, decision=DECISION)
    outcomes = Counter(message.outcome for message in report.messages)
    assert (report.created, outcomes) == (3, {LetterOutcome.WAITS: 2, LetterOutcome.KEPT: 1})
    ledger = graveyard.pipeline.ledger
    assert {unit.wal_id for unit in ledger.find(status=Status.PENDING)} == set(graveyard.wal_ids([1, 3, 4]))
    (kept,) = graveyard.pipeline.deliveries.rejected()
    assert (kept.reason_code, kept.record_index) == ("database_refused", 0)
    counts = graveyard.pipeline.deliveries.counts()
    assert (counts[DeliveryState.IN_FLIGHT], counts[DeliveryState.DEAD_LETTERED]) == (2, 1)
    graveyard.assert_sound()
