"""Kill switches and days outside the partitions, tested with the real sensors."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.samples import hrrr
from kfm_dagster.demo.samples.goes_abi import goes_abi_samples
from kfm_dagster.governance.log import Decision
from kfm_dagster.governance.switches import EVERY_DATASET
from kfm_dagster.ledger.deliveries import DeliveryState
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.notifications.sqs import MAX_VISIBILITY_SECONDS
from kfm_dagster.views.feeds import IGNORED, IgnoredFilter
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import DAY, PARTITION, Clock, FakeQueue, announce, good, put, volumes
from kfm_dagster_tests.integration.face import Face, requested_datasets
from kfm_dagster_tests.transactions import own_tx

WHY = Decision(actor="ada", reason="wrong projection upstream", change_ref="INC-7")


@pytest.fixture
def clock(face: Face) -> Clock:
    """A fixed clock for the sensors and runs of `face`."""
    clock = Clock()
    face.pipeline.clock = clock
    return clock


@pytest.fixture
def batch(contracts: ContractRegistry, objects: Path) -> list[SqsMessage]:
    """Two messages for each of two datasets on one day; the first two are of goes-abi."""
    items = [*(good(*sample) for sample in goes_abi_samples(DAY, 2)), *volumes(2)]
    put(objects, items)
    return [announce([item.event()], registry=contracts) for item in items]


def work(face: Face, sensor: str) -> list[set[str]]:
    """Tick a sensor and launch its requests; return the datasets of each run."""
    requests = face.tick(sensor).run_requests
    for request in requests:
        assert face.launch(request).success
    return [requested_datasets(request) for request in requests]


def of_status(face: Face, status: Status) -> set[str]:
    return {record.dataset for record in traces.records(face.pipeline).values() if record.status is status}


@pytest.mark.clause("WAL-10")
def test_nothing_is_received_while_all_datasets_of_the_queue_are_switched_off(
    face: Face, queue: FakeQueue, clock: Clock, batch: list[SqsMessage]
) -> None:
    queue.waiting = list(batch)
    switches = face.pipeline.ledger.switches
    switches.engage(EVERY_DATASET, WHY, expires_at=clock.now + timedelta(hours=3))

    tick = face.tick("nodd_messages")
    assert tick.run_requests == []
    assert tick.skip_message == (
        "nothing is received, messages stay safe in the queue: every dataset is switched off since 2026-01-01 00:00 "
        "UTC by ada, until 2026-01-01 03:00 UTC: wrong projection upstream (INC-7)"
    )
    assert (queue.receives, len(queue.waiting)) == (0, 4)

    clock.forward(3 * 3600)  # the switch expires
    assert work(face, "nodd_messages") == [{"goes-abi", "nexrad-l2"}]
    assert traces.statuses(face.pipeline) == {Status.SUCCEEDED: 4}


@pytest.mark.clause("WAL-10")
def test_units_of_a_switched_off_dataset_wait_while_other_datasets_continue(
    face: Face, queue: FakeQueue, clock: Clock, batch: list[SqsMessage]
) -> None:
    queue.waiting = list(batch)
    switches = face.pipeline.ledger.switches
    switches.engage("goes-abi", WHY)

    assert work(face, "nodd_messages") == [{"nexrad-l2"}]
    assert (of_status(face, Status.PENDING), of_status(face, Status.SUCCEEDED)) == ({"goes-abi"}, {"nexrad-l2"})
    # The messages of goes-abi are hidden for SQS's maximum, because redeliveries count for the redrive policy.
    assert queue.visibility == [(message.receipt_handle, MAX_VISIBILITY_SECONDS) for message in batch[:2]]

    for _ in range(2):
        tick = face.tick("nodd_ledger")
        assert tick.run_requests == []
    assert tick.skip_message == (
        "2 units pending; goes-abi is switched off since 2026-01-01 00:00 UTC by ada, until it is released: "
        "wrong projection upstream (INC-7)"
    )

    switches.release("goes-abi", Decision(actor="ada", reason="repaired"))
    # The ledger's sensor requests a run at the second tick that sees the units: nodd_messages may still request it.
    assert work(face, "nodd_messages") == []
    assert [work(face, "nodd_ledger") for _ in range(2)] == [[], [{"goes-abi"}]]
    assert traces.statuses(face.pipeline) == {Status.SUCCEEDED: 4}
    assert set(queue.deleted) == {message.receipt_handle for message in batch}
    assert {record.attempts for record in traces.records(face.pipeline).values()} == {1}


@pytest.mark.clause("WAL-10")
def test_a_switch_engaged_while_a_request_waits_at_the_queue_stops_the_messages_of_the_request(
    face: Face, queue: FakeQueue, batch: list[SqsMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    def receive(*arguments: Any, **options: Any) -> list[SqsMessage]:
        face.pipeline.ledger.switches.engage("goes-abi", WHY)
        return FakeQueue.receive(queue, *arguments, **options)

    queue.waiting = list(batch)
    monkeypatch.setattr(queue, "receive", receive)
    assert work(face, "nodd_messages") == [{"nexrad-l2"}]
    assert [receipt for receipt, _ in queue.visibility] == [message.receipt_handle for message in batch[:2]]


@pytest.mark.clause("WAL-10")
def test_a_redelivered_message_is_hidden_again_until_the_switch_expires(
    face: Face, queue: FakeQueue, clock: Clock, batch: list[SqsMessage]
) -> None:
    face.pipeline.ledger.switches.engage("goes-abi", WHY, expires_at=clock.now + timedelta(seconds=100))
    for seconds in (100, 60):
        queue.waiting = batch[:1]
        queue.visibility.clear()
        tick = face.tick("nodd_messages")
        assert tick.run_requests == []
        assert "1 message hidden (goes-abi is switched off" in tick.skip_message
        assert queue.visibility == [(batch[0].receipt_handle, seconds)]
        clock.forward(40)
    clock.forward(20)
    queue.waiting = batch[:1]
    queue.visibility.clear()
    face.tick("nodd_messages")
    assert queue.visibility == []
    assert [work(face, "nodd_ledger") for _ in range(2)] == [[], [{"goes-abi"}]]


@pytest.mark.clause("WAL-10", "DAG-04")
def test_units_that_wait_for_a_switch_do_not_delay_other_datasets(
    face: Face, queue: FakeQueue, clock: Clock, batch: list[SqsMessage]
) -> None:
    face.pipeline.settings = face.pipeline.settings.model_copy(update={"max_in_flight_units": 2})
    face.pipeline.ledger.switches.engage("goes-abi", WHY)
    queue.waiting = list(batch)
    assert work(face, "nodd_messages") == []
    assert of_status(face, Status.PENDING) == {"goes-abi"}
    assert work(face, "nodd_messages") == [{"nexrad-l2"}]


@pytest.mark.clause("WAL-10")
def test_a_listing_run_of_a_switched_off_dataset_fails_with_this_reason_and_lists_nothing(
    face: Face, clock: Clock, batch: list[SqsMessage]
) -> None:
    face.pipeline.ledger.switches.engage("nexrad-l2", WHY)
    result = face.ingest(partition=PARTITION, raise_on_error=False)
    assert not result.success
    [failure] = [e for e in result.all_events if e.event_type is dg.DagsterEventType.STEP_FAILURE]
    assert "nexrad-l2 is switched off" in str(failure.step_failure_data)
    assert traces.records(face.pipeline) == {}


OLD_DAY = date(2014, 7, 30)
"""The first day that the contract allows."""
SENSORS = ("nodd_messages", "nodd_ledger", "nodd_ledger", "nodd_due")
"""The ledger's sensor ticks twice, because it requests runs only for units that an earlier tick saw."""


def of_day(day: date, objects: Path, contracts: ContractRegistry, *, announced: datetime | None = None) -> SqsMessage:
    """Store an HRRR object of this day and announce it, by default at the time of the model run."""
    run = datetime(day.year, day.month, day.day, tzinfo=UTC)
    key, content, index = hrrr.make_hrrr(run=run, lead=1)
    item = good(hrrr.BUCKET, key, content)
    put(objects, [item, good(hrrr.BUCKET, f"{key}.idx", index.encode())])
    return announce([item.event(event_time=announced or run)], registry=contracts)


def served(face: Face) -> tuple[set[str], str]:
    """Tick every sensor and launch the requests; return the partitions and all skip messages."""
    ticks = [face.tick(sensor) for sensor in SENSORS]
    requests = [request for tick in ticks for request in tick.run_requests]
    for request in requests:
        face.launch(request)
    return {str(request.partition_key) for request in requests}, "\n".join(tick.skip_message or "" for tick in ticks)


def statuses(face: Face) -> dict[str, Status]:
    return {record.dataset: record.status for record in traces.records(face.pipeline).values()}


def within_window(objects: Path, contracts: ContractRegistry) -> SqsMessage:
    """Store an object of a day within the window, which must be ingested; return its message."""
    [item] = volumes(1)
    put(objects, [item])
    return announce([item.event()], registry=contracts)


STRAYS = [
    (OLD_DAY, date(2025, 4, 2)),
    (date(2024, 12, 31), date(2025, 4, 2)),
    (date(2098, 12, 31), date(2025, 4, 2)),
    # By the sender's clock, the object's day is the current day.
    (date(2098, 12, 30), date(2098, 12, 30)),
]
"""Days outside the window, and the announcement times of their objects."""


@pytest.mark.clause("DAG-12", "SEC-05", "SEC-13", "OPR-19")
def test_objects_of_days_outside_the_window_are_ignored_with_a_reason_and_other_days_continue(
    face: Face, queue: FakeQueue, objects: Path, contracts: ContractRegistry
) -> None:
    strays = {
        f"hrrr.{day:%Y%m%d}": of_day(day, objects, contracts, announced=datetime.combine(announced, time(), UTC))
        for day, announced in STRAYS
    }
    queue.waiting += [*strays.values(), within_window(objects, contracts)]
    partitions, _ = served(face)
    assert partitions == {"2025-04-02"}
    rows = IGNORED.query(face.pipeline, IgnoredFilter(reason="outside_window"), None, 10).rows
    assert {(row.message_id, row.dataset, row.bucket, str(row.key).split("/")[0]) for row in rows} == {
        (stray.message_id, "hrrr", hrrr.BUCKET, folder) for folder, stray in strays.items()
    }
    assert len(rows) == len(STRAYS)
    assert statuses(face) == {"nexrad-l2": Status.SUCCEEDED}
    names = [stray.message_id for stray in strays.values()]
    assert face.pipeline.deliveries.states(names) == dict.fromkeys(names, DeliveryState.DELETED)


@pytest.mark.clause("OPR-27", "DAG-12", "SEC-05", "BEY-03")
def test_after_an_extension_of_the_window_new_days_wait_for_a_reload_and_too_early_days_are_rejected(
    face: Face, queue: FakeQueue, objects: Path, contracts: ContractRegistry
) -> None:
    own_tx(face.pipeline.window).lower(OLD_DAY - timedelta(days=9), actor="ada", reason="an earlier day")
    days = (OLD_DAY, OLD_DAY - timedelta(days=1))
    queue.waiting += [*(of_day(day, objects, contracts) for day in days), within_window(objects, contracts)]
    partitions, texts = served(face)
    assert partitions == {"2025-04-02"}
    assert "1 unit of 2014-07-30 on hold: the code location was loaded before" in texts
    [rejected] = face.pipeline.deliveries.rejected(limit=10)
    assert (rejected.reason_code, str(OLD_DAY) in rejected.detail) == ("invalid_time_range", True)
    assert statuses(face) == {"nexrad-l2": Status.SUCCEEDED, "hrrr": Status.PENDING}
    assert IGNORED.query(face.pipeline, IgnoredFilter(), None, 10).rows == []

    reloaded = Face(instance=face.instance, pipeline=face.pipeline)
    served(reloaded)
    served(reloaded)
    assert statuses(face) == {"nexrad-l2": Status.SUCCEEDED, "hrrr": Status.SUCCEEDED}


@pytest.mark.clause("SEC-13", "DAG-04")
def test_units_of_future_days_do_not_block_the_intake(
    face: Face, queue: FakeQueue, objects: Path, contracts: ContractRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFM_MAX_IN_FLIGHT_UNITS", "1")
    limited = face.reopened()
    tomorrow = limited.pipeline.clock().date() + timedelta(days=1)
    queue.waiting += [of_day(tomorrow, objects, contracts)]
    assert limited.tick("nodd_messages").run_requests == []
    assert statuses(limited) == {"hrrr": Status.PENDING}

    queue.waiting += [within_window(objects, contracts)]
    [request] = limited.tick("nodd_messages").run_requests
    assert request.partition_key == "2025-04-02"
    assert limited.tick("nodd_messages").skip_message.startswith("1 live units are in flight")
    limited.pipeline.ledger.switches.engage("hrrr", Decision(actor="ada", reason="a flood", change_ref="CHG-1"))
    assert limited.tick("nodd_messages").skip_message.startswith("1 live units are in flight")
    limited.pipeline.close()
