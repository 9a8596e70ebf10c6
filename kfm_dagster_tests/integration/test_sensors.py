"""The sensors without a daemon: landing, grouping, run keys, back-pressure, recovery."""

from __future__ import annotations

import itertools
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import Mock

import dagster as dg
import pytest

from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.defs import long_ticks, sensors
from kfm_dagster.defs.chain import LANE_TAG, asset_keys
from kfm_dagster.defs.long_ticks import IDLE_TICKS
from kfm_dagster.defs.resources import SqsQueueResource
from kfm_dagster.demo.samples.goes_abi import goes_abi_samples
from kfm_dagster.demo.samples.nexrad_level2 import nexrad_level2_samples
from kfm_dagster.ingest.nodes import Source, StacRegister
from kfm_dagster.ingest.process_state import FORGOTTEN_AFTER
from kfm_dagster.ledger.deliveries import DeliveryState
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.notifications import sqs
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.notifications.sqs import Queue
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import (
    DAY,
    PARTITION,
    CrashError,
    Failpoint,
    FakeQueue,
    StoredObject,
    announce,
    deliver,
    enqueue,
    good,
    put,
    run_pending,
    volumes,
)
from kfm_dagster_tests.integration.face import Face

NEXT_DAY = DAY + timedelta(days=1)


@pytest.fixture
def batch(contracts: ContractRegistry, objects: Path) -> list[SqsMessage]:
    """Messages of two datasets and two days; the second day has only volumes. The objects exist."""
    items = [
        *volumes(2),
        *(good(*sample) for sample in goes_abi_samples(DAY, 2)),
        *(good(*sample) for sample in nexrad_level2_samples(NEXT_DAY, 2)),
    ]
    put(objects, items)
    return [announce([item.event()], registry=contracts) for item in items]


def again(messages: list[SqsMessage], delivery: int) -> list[SqsMessage]:
    """Return the same messages, redelivered in another order."""
    return [
        SqsMessage(
            message_id=message.message_id,
            body=message.body,
            receipt_handle=f"{message.message_id}#{delivery}",
            receive_count=delivery,
            sent_at=message.sent_at,
        )
        for message in reversed(messages)
    ]


def requested(tick: Any) -> list[tuple[str, set[tuple[str, str]]]]:
    """Return partition and assets of each run request."""
    return [
        (request.partition_key, {tuple(key.path) for key in request.asset_selection}) for request in tick.run_requests
    ]


def chain_of(*datasets: str) -> set[tuple[str, str]]:
    return {(key.path[0], key.path[1]) for dataset in datasets for key in asset_keys(dataset)}


@pytest.mark.clause("DAG-03")
def test_a_tick_lands_the_batch_and_requests_one_run_per_day_over_its_datasets(
    face: Face, queue: FakeQueue, batch: list[SqsMessage]
) -> None:
    queue.waiting = list(batch)
    tick = face.tick("nodd_messages")

    assert requested(tick) == [
        (PARTITION, chain_of("goes-abi", "nexrad-l2")),
        (NEXT_DAY.isoformat(), chain_of("nexrad-l2")),
    ]
    [file] = [path for path in Path(face.pipeline.settings.storage, "landing").rglob("*") if path.is_file()]
    landed = face.pipeline.landing.read(f"sha256:{file.name.split('.')[0]}")
    assert {message.message_id: message.body for message in landed} == {
        message.message_id: message.body for message in batch
    }
    config = {"config": {"source": Source.LEDGER.name, "lane": Lane.LIVE.name}}
    assert tick.run_requests[0].run_config == {
        "ops": {"goes_abi__message_parse": config, "nexrad_l2__message_parse": config}
    }
    datasets = {"kfm/dataset.goes-abi": "yes", "kfm/dataset.nexrad-l2": "yes"}
    assert datasets.items() | {("kfm/lane", "live"), ("kfm/source", "ledger")} <= tick.run_requests[0].tags.items()
    assert traces.statuses(face.pipeline) == {Status.PENDING: 6}
    assert "queue is empty" in face.tick("nodd_messages").skip_message
    queue.waiting = again(batch, 2)
    repeated = face.tick("nodd_messages")
    assert (repeated.run_requests, "6 units known already" in repeated.skip_message) == ([], True)

    # The tick parsed the messages, and no run reads them again.
    file.unlink()
    for request in tick.run_requests:
        assert face.launch(request).success
    assert traces.statuses(face.pipeline) == {Status.SUCCEEDED: 6}
    queue.waiting = again(batch, 3)
    assert face.tick("nodd_messages").run_requests == []
    assert {record.attempts for record in traces.records(face.pipeline).values()} == {1}
    receipts = [{message.receipt_handle for message in again(batch, delivery)} for delivery in (2, 3)]
    assert set(queue.deleted) == set.union(*receipts)


@pytest.mark.clause("DAG-03", "DAG-11")
def test_no_sensor_repeats_a_run_request_of_another_sensor_before_dagster_launches_the_run(
    face: Face, queue: FakeQueue, batch: list[SqsMessage]
) -> None:
    """Dagster launches a tick's runs one by one while the other sensors keep ticking."""
    queue.waiting = list(batch)
    requests = face.tick("nodd_messages").run_requests
    assert len(requests) == 2
    for _ in range(3):
        assert face.tick("nodd_ledger").run_requests == []
    # Dagster has launched only the first of the two runs, and this run has ended.
    face.launch(requests[0])
    assert face.tick("nodd_ledger").run_requests == []
    face.launch(requests[1])
    for _ in range(2):
        assert [face.tick(sensor).run_requests for sensor in ("nodd_messages", "nodd_ledger")] == [[], []]
    with face.pipeline.database.snapshot() as view:
        runs = view.connection.exec_driver_sql("SELECT DISTINCT run_id FROM run_state").scalars().all()
    states = [state for run in runs for state in face.pipeline.stages.run_states.of_run(run)]
    claimed = [state for state in states if "message_parse" in state.dataset_id]
    assert [state.validation_summary["checks"] > 0 for state in claimed] == [True] * 3


@pytest.mark.clause("DAG-03")
@pytest.mark.parametrize(
    ("when", "asks"), [("before a further tick", 0), ("after a further tick", 2), ("long after the tick", 2)]
)
def test_a_request_that_was_never_launched_is_repeated_by_the_ledgers_sensor(
    face: Face, queue: FakeQueue, batch: list[SqsMessage], monkeypatch: pytest.MonkeyPatch, when: str, asks: int
) -> None:
    queue.waiting = list(batch)
    face.tick("nodd_messages")
    face.tick("nodd_ledger")
    if when == "after a further tick":
        face.tick("nodd_messages")
    elif when == "long after the tick":
        later = face.pipeline.clock() + FORGOTTEN_AFTER
        monkeypatch.setattr(face.pipeline, "clock", lambda: later)
    assert len(face.tick("nodd_ledger").run_requests) == asks


@pytest.mark.clause("DAG-03")
def test_a_batch_received_again_after_a_lost_tick_gets_the_same_run_keys(
    face: Face, queue: FakeQueue, batch: list[SqsMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.waiting = list(batch)
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "ensure", Mock(side_effect=CrashError))  # the batch is landed but not recorded
        with pytest.raises(CrashError):
            face.tick("nodd_messages")
    assert traces.records(face.pipeline) == {}
    queue.waiting = again(batch, 2)
    keys = [request.run_key for request in face.tick("nodd_messages").run_requests]

    # The same batch in another deployment without a lost tick.
    monkeypatch.setenv("KFM_HOME", str(Path(face.pipeline.settings.home).parent / "other"))
    monkeypatch.delenv("KFM_WAL_DSN")
    other = face.reopened()
    queue.waiting = list(batch)
    assert [request.run_key for request in other.tick("nodd_messages").run_requests] == keys
    assert len(set(keys)) == 2
    other.pipeline.close()


@pytest.mark.clause("DAG-03")
def test_units_of_a_dataset_that_is_no_longer_ingested_stay_pending(face: Face) -> None:
    deliver(face.pipeline, *volumes(1))
    face.pipeline.registry = face.pipeline.registry.only(["hrrr"])
    assert [face.tick("nodd_ledger").run_requests for _ in range(3)] == [[], [], []]
    face.pipeline.registry = face.pipeline.registry.every
    assert [len(face.tick("nodd_ledger").run_requests) for _ in range(2)][-1] == 1


@pytest.mark.clause("DAG-03")
def test_the_ledgers_sensor_repeats_a_request_with_the_same_key_until_its_run_exists(face: Face) -> None:
    deliver(face.pipeline, *volumes(1))
    # Units recorded since the last tick are left to the sensor that recorded them.
    waiting = face.tick("nodd_ledger")
    assert (waiting.run_requests, "1 unit pending" in waiting.skip_message) == ([], True)

    first_request, second_request = (face.tick("nodd_ledger").run_requests for _ in range(2))
    assert [request.run_key for request in first_request] == [request.run_key for request in second_request]
    [request] = first_request
    assert request.run_config["ops"]["nexrad_l2__message_parse"]["config"]["source"] == Source.LEDGER.name
    assert face.launch(request).success
    assert face.launch(request) is None
    assert "nothing is pending" in face.tick("nodd_ledger").skip_message

    deliver(face.pipeline, volumes(2)[1])
    face.tick("nodd_ledger")
    [later] = face.tick("nodd_ledger").run_requests
    assert later.run_key != request.run_key
    assert face.launch(later).success
    assert traces.statuses(face.pipeline) == {Status.SUCCEEDED: 2}


@pytest.mark.clause("DAG-04")
def test_the_sensor_receives_nothing_while_too_many_units_are_in_flight(
    face: Face, queue: FakeQueue, batch: list[SqsMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFM_MAX_IN_FLIGHT_UNITS", "2")
    limited = face.reopened()
    queue.waiting = list(batch)
    requests = limited.tick("nodd_messages").run_requests
    assert (len(queue.waiting), queue.receives) == (4, 1)

    full = limited.tick("nodd_messages")
    assert full.run_requests == []
    assert full.skip_message == (
        "2 live units are in flight, the limit is 2 (KFM_MAX_IN_FLIGHT_UNITS); messages stay safe in the queue"
    )
    assert (len(queue.waiting), queue.receives) == (4, 1)

    for request in requests:
        limited.launch(request)
    assert limited.tick("nodd_messages").run_requests
    assert (len(queue.waiting), queue.receives) == (2, 2)
    limited.pipeline.close()


@pytest.mark.clause("DAG-04")
def test_a_tick_ends_within_its_budget_whatever_the_backlog(
    face: Face, batch: list[SqsMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "KFM_TICK_BUDGET_SECONDS": "1",
        "KFM_MAX_UNITS_PER_RUN": "10000",
        "KFM_MAX_IN_FLIGHT_UNITS": "1000000",
    }.items():
        monkeypatch.setenv(name, value)
    numbers = itertools.count()

    def receive(**request: int) -> dict[str, Any]:
        keys = [str(next(numbers)) for _ in range(request["MaxNumberOfMessages"])]
        return {"Messages": [{"MessageId": key, "Body": batch[0].body, "ReceiptHandle": key} for key in keys]}

    client = Mock(receive_message=receive, get_queue_url=lambda **_: {"QueueUrl": "endless"})
    queue = Queue(client, name="endless", threads=4)
    monkeypatch.setattr(SqsQueueResource, "connect", lambda self, settings, dates=None: queue)
    # Each reading of the clock is 0.3 s later.
    monkeypatch.setattr(sqs, "time", Mock(monotonic=itertools.count(0, 0.3).__next__))
    patient = face.reopened()
    assert len(patient.tick("nodd_messages").run_requests) == 1
    # The first request, and one by each thread in three further rounds.
    received = 10 * (1 + 3 * patient.pipeline.settings.receive_threads)
    assert patient.pipeline.deliveries.counts()[DeliveryState.IN_FLIGHT] == received
    patient.pipeline.close()


@pytest.mark.clause("WSM-11")
def test_units_of_a_dead_run_are_released_but_units_of_a_live_run_are_not(face: Face) -> None:
    runs = {}
    for number, status in enumerate([dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.FAILURE]):
        deliver(face.pipeline, volumes(2)[number])
        run = face.instance.create_run_for_job(face.repository.get_job("ingest"), status=status)
        with pytest.raises(CrashError):
            run_pending(face.pipeline, run.run_id, dies_at=Failpoint(operator=StacRegister.operator, point="computed"))
        runs[status] = volumes(2)[number].uri
    face.tick("nodd_ledger")
    records = traces.records(face.pipeline)
    assert records[runs[dg.DagsterRunStatus.STARTED]].status is Status.IN_PROGRESS
    readmitted = records[runs[dg.DagsterRunStatus.FAILURE]]
    assert (readmitted.status, readmitted.last_error_code) == (Status.PENDING, "worker_lost")

    [request] = face.tick("nodd_ledger").run_requests
    face.launch(request)
    assert traces.statuses(face.pipeline) == {Status.IN_PROGRESS: 1, Status.SUCCEEDED: 1}


@pytest.mark.clause("DAG-03")
def test_the_next_run_of_a_day_is_requested_once_the_active_run_has_settled(face: Face, queue: FakeQueue) -> None:
    """An active run that has not claimed yet takes new units, too; a run that has settled takes none."""
    first, second, third = volumes(3)
    deliver(face.pipeline, first)
    tags = {"dagster/partition": PARTITION, LANE_TAG: Lane.LIVE.value}
    run = face.instance.create_run_for_job(
        face.repository.get_job("ingest"), status=dg.DagsterRunStatus.STARTED, tags=tags
    )
    enqueue(face.pipeline, queue, second)
    assert face.tick("nodd_messages").run_requests == []
    run_pending(face.pipeline, run.run_id)
    assert traces.statuses(face.pipeline) == {Status.SUCCEEDED: 2}
    deliver(face.pipeline, third)
    face.tick("nodd_ledger")
    assert [request.partition_key for request in face.tick("nodd_ledger").run_requests] == [PARTITION]


@pytest.mark.clause("DAG-03")
def test_a_tick_of_an_idle_deployment_looks_for_work_until_there_is_some(
    face: Face, queue: FakeQueue, batch: list[SqsMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    arriving: list[StoredObject] = []

    class Ticks(Event):
        """The event of short ticks; each wait is listed and takes no time, and `arriving` is delivered in it."""

        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            if timeout and arriving:
                deliver(face.pipeline, *arriving)
            return self.is_set()

    waits: list[float | None] = []
    short = Ticks()
    short.set()
    monkeypatch.setattr(long_ticks, "SHORT", short)
    monkeypatch.setattr(sensors, "SHORT", short)

    def looks(sensor: str) -> int:
        waits.clear()
        queue.receives = 0
        face.tick(sensor)
        return queue.receives if sensor == "nodd_messages" else len(waits)

    every = ("nodd_messages", "nodd_ledger", "nodd_due")
    assert [looks(sensor) for sensor in every * (IDLE_TICKS + 1)] == [1] * 3 * (IDLE_TICKS + 1)
    short.clear()
    assert [looks(sensor) for sensor in every] == [6, 6, 2]

    # Units appear in the first wait; the look after the second wait requests their run.
    arriving += [good(*sample) for sample in nexrad_level2_samples(NEXT_DAY + timedelta(days=1), 1)]
    waits.clear()
    assert (len(face.tick("nodd_ledger").run_requests), waits) == (1, [0, 5, 5])

    arrivals = iter([[], [], batch])
    with monkeypatch.context() as patched:
        patched.setattr(queue, "receive", lambda *_, **__: list(next(arrivals)))
        assert len(face.tick("nodd_messages").run_requests) == 2
    assert [looks("nodd_messages") for _ in range(IDLE_TICKS + 1)] == [*[1] * IDLE_TICKS, 6]
