"""Only a value that the database refuses is rejected, with the database's message.

Triggers of the tests cause the refusals, since known bad values are rejected earlier.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime

import pytest
from sqlalchemy.exc import DBAPIError, OperationalError

from kfm_dagster.contracts.issues import ParseIssue
from kfm_dagster.demo.feed import ObjectEvent
from kfm_dagster.errors import DatabaseUnavailableError
from kfm_dagster.governance.log import Decision
from kfm_dagster.ingest.discovery import DayListing
from kfm_dagster.ingest.intake import record
from kfm_dagster.ingest.kill_switch_policy import ALL_ON
from kfm_dagster.ingest.nodes import MessageParse, Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.deliveries import DeliveryState
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.recovery.backfill.days import Backfills
from kfm_dagster.recovery.backfill.progress import day_progress
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.objects import ListedObject
from kfm_dagster.storage.refusal import refusal_of, write_all_but_refused
from kfm_dagster.views.feeds import rejected_message
from kfm_dagster_tests.databases import refuse_rows
from kfm_dagster_tests.factories import envelope
from kfm_dagster_tests.integration.chain import FakeQueue, assert_conserved, raw_message
from kfm_dagster_tests.recovery.dlq_fixture import event
from kfm_dagster_tests.storage.test_constraints import STANDING, insert
from kfm_dagster_tests.transactions import own_tx

BAD = "KBAD"


@pytest.fixture
def refuse(pipeline: Pipeline) -> Callable[[str, str], None]:
    """Return a function that makes a table refuse rows for which a condition over NEW holds."""
    return lambda table, condition: refuse_rows(pipeline.database, table, condition)


def bad(number: int) -> ObjectEvent:
    good = event(number)
    return ObjectEvent(
        bucket=good.bucket, key=good.key.replace("KTLX", BAD), size=1, etag=good.etag, event_time=good.event_time
    )


def message(name: str, *events: ObjectEvent) -> SqsMessage:
    return raw_message(json.dumps({"Records": [event.record() for event in events]}), name=name)


def uris(pipeline: Pipeline, *, status: Status = Status.PENDING) -> set[str]:
    return {unit.object_uri for unit in own_tx(pipeline.ledger).find(status=status)}


@pytest.mark.clause("SEC-05", "BEY-08")
def test_only_the_units_that_the_database_refuses_are_rejected(
    pipeline: Pipeline, queue: FakeQueue, refuse: Callable[[str, str], None]
) -> None:
    refuse("nodd_wal_records", f"NEW.object_uri LIKE '%{BAD}%'")
    messages = [
        *(message(f"good-{number}", event(number)) for number in range(5)),
        message("mixed", event(5), bad(6), event(7), bad(8)),
        message("bad", bad(9)),
        message("last", event(10)),
    ]
    report = record(pipeline, messages, ALL_ON)
    assert (report.received, report.created, report.rejected) == (8, 8, 3)
    assert uris(pipeline) == {f"s3://{event(n).bucket}/{event(n).key}" for n in (0, 1, 2, 3, 4, 5, 7, 10)}
    rejected = sorted(
        (str(rejection.message_id), rejection.record_index, rejection.reason_code)
        for rejection in pipeline.deliveries.rejected()
    )
    refused = ParseIssue.DATABASE_REFUSED
    ids = {message.body: message.message_id for message in messages}
    assert rejected == sorted([(ids[messages[5].body], 1, refused), (ids[messages[6].body], 0, refused)])
    [both] = [rejection for rejection in pipeline.deliveries.rejected() if rejection.record_index == 1]
    shown = rejected_message(pipeline.deliveries, pipeline.landing, str(both.message_id))
    assert (both.records, shown) == (2, messages[5].body)
    assert "no_such_place" in both.detail
    states = pipeline.deliveries.states([message.message_id for message in messages])
    assert [states[message.message_id] for message in messages[4:]] == [
        DeliveryState.IN_FLIGHT, DeliveryState.REJECTED, DeliveryState.REJECTED, DeliveryState.IN_FLIGHT,
    ]  # fmt: skip
    # A message with only rejections becomes visible at once, so that the redrive policy soon moves it to the DLQ.
    assert queue.visibility == [(messages[6].receipt_handle, 0)]
    assert_conserved(pipeline)


@pytest.mark.clause("SEC-05")
@pytest.mark.parametrize("table", ["nodd_wal_deliveries", "rejected_messages", "ignored_records"])
def test_only_the_message_that_the_database_refuses_is_rejected_and_its_units_are_pending(
    pipeline: Pipeline, refuse: Callable[[str, str], None], table: str
) -> None:
    condition = {
        "nodd_wal_deliveries": "NEW.sns_message_id = 'sns-bad'",
        "rejected_messages": "NEW.detail LIKE '%elsewhere%'",
        "ignored_records": "NEW.object_key LIKE '%_MDM'",
    }
    refuse(table, condition[table])
    foreign = {"s3": {"bucket": {"name": "elsewhere"}, "object": {"key": "a"}}}
    other_body = json.loads(json.dumps(event(3).record()))
    other_body["s3"]["object"]["key"] += "_MDM"
    inner = json.dumps({"Records": [event(2).record(), foreign, other_body]})
    [topic, *_] = [name for name, contracts in pipeline.registry.topics.items() if contracts[0].id == "nexrad-l2"]
    outer = {"Type": "Notification", "MessageId": "sns-bad", "TopicArn": topic, "Message": inner}
    culprit = raw_message(json.dumps(outer), name="culprit")
    record(pipeline, [message("first", event(1)), culprit, message("last", event(4))], ALL_ON)
    assert len(uris(pipeline)) == 3
    [single] = [
        rejection
        for rejection in pipeline.deliveries.rejected()
        if rejection.reason_code == ParseIssue.DATABASE_REFUSED
    ]
    assert single.message_id == culprit.message_id
    assert "no_such_place" in single.detail
    assert pipeline.deliveries.counts() == {
        **dict.fromkeys(DeliveryState, 0), DeliveryState.IN_FLIGHT: 2, DeliveryState.REJECTED: 1,
    }  # fmt: skip
    assert_conserved(pipeline)


@pytest.mark.clause("SEC-05")
def test_only_the_listed_object_that_the_database_refuses_is_left_out(
    pipeline: Pipeline,
    refuse: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    refuse("nodd_wal_records", f"NEW.object_uri LIKE '%{BAD}%'")
    events = [event(1), bad(2), event(3)]
    listed = [
        ListedObject(
            uri=f"s3://{event.bucket}/{event.key}",
            size=1,
            etag=event.etag,
            last_modified=datetime(2025, 4, 3, tzinfo=UTC),
        )
        for event in events
    ]
    monkeypatch.setattr(pipeline.objects, "list_day", lambda *_, **__: iter(listed))
    backfills, day = Backfills(pipeline), date(2025, 4, 2)
    why = Decision(actor="ada", reason="outage", change_ref="CHG-1")
    backfill = backfills.start(datasets=["nexrad-l2"], first_day=day, last_day=day, decision=why)
    [request] = backfills.advance(listing=(), limit=1).requests
    node = MessageParse(
        pipeline=pipeline,
        dataset="nexrad-l2",
        partition=request.day,
        run_id="r",
        source=Source.LISTING,
        limit=10,
        account=DayListing(clock=pipeline.clock, backfill_id=request.backfill_id, dataset="nexrad-l2", day=request.day),
    )
    node.transform()
    with pipeline.database.transaction() as tx:
        assert len(node.apply(tx, [])) == 2
    assert uris(pipeline, status=Status.IN_PROGRESS) == {listed[0].uri, listed[2].uri}
    [listing] = day_progress(pipeline.database, backfill.backfill_id)
    assert (listing.listed, listing.created, listing.requeued) == (3, 2, 0)
    assert listing.left_out == {"database_refused": {"keys": 1, "first": events[1].key}}
    assert "no_such_place" in caplog.text


BOUNDED = {
    "nodd_wal_records": (
        "dataset provider queue schema_version object_version sequencer sqs_message_id sns_message_id topic_arn subject"
        " object_uri"
    ),
    "nodd_wal_deliveries": "message_id queue landing_sha256 sns_message_id topic_arn receipt_handle",
}
LONGER = {"object_uri": 1400, "receipt_handle": 4096}
"""Limits of the fields whose limit is not 320 characters."""


@pytest.mark.clause("SEC-08")
def test_the_database_enforces_the_length_of_every_text_of_a_record(database: Database) -> None:
    with database.engine.connect() as connection, connection.begin() as writing:
        fields = [(table, field) for table, names in BOUNDED.items() for field in names.split()]
        for number, (table, field) in enumerate(fields):
            keys = {"wal_id": envelope(number).wal_id, "object_uri": f"s3://b/{number}", "message_id": str(number)}
            usual = STANDING[table][0]
            row = usual | {name: value for name, value in keys.items() if name in usual}
            length = LONGER.get(field, 320)
            with pytest.raises(DBAPIError, match="texts_are_bounded"), connection.begin_nested():
                insert(connection, table, {**row, field: "x" * (length + 1)})
            insert(connection, table, {**row, field: "x" * length})
        writing.rollback()


def _count_writes(database: Database, items: Sequence[int], refused: frozenset[int]) -> tuple[int, list[int], set[int]]:
    writes: list[Sequence[int]] = []

    def write(part: Sequence[int]) -> list[int]:
        writes.append(part)
        if refused & set(part):
            raise ValueError("it has no form")
        return list(part)

    with database.transaction() as tx:
        parts, refused_items = write_all_but_refused(tx, items, write)
    return len(writes), [item for part in parts for item in part], {item for item, _ in refused_items}


def test_one_refused_item_costs_few_writes_and_the_order_is_kept(database: Database) -> None:
    for culprit in (0, 511, 1023):
        writes, taken, left = _count_writes(database, range(1024), frozenset({culprit}))
        assert taken == [number for number in range(1024) if number != culprit]
        assert left == {culprit}
        assert writes <= 2 * 10 + 1
    assert _count_writes(database, [], frozenset()) == (0, [], set())


@pytest.mark.clause("SEC-05")
def test_an_unreachable_database_does_not_count_as_a_refusal(database: Database) -> None:
    def gone(_: Sequence[int]) -> None:
        raise OperationalError("INSERT", {}, Exception("server closed the connection unexpectedly"))

    with pytest.raises(DatabaseUnavailableError), database.transaction() as tx:
        write_all_but_refused(tx, [1, 2], gone)
    assert refusal_of(OperationalError("INSERT", {}, Exception("database is locked"))) is None
    assert refusal_of(KeyError("a bug of ours")) is None
