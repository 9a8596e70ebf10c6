"""The resident worker in this process: intake, sharing, reports, recovery of a worker's claims."""

from __future__ import annotations

import itertools
import socket
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from kfm_dagster.catalog.store import Catalog
from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.defs.chain import asset_keys
from kfm_dagster.defs.resources import PipelineResource, SqsQueueResource, WalResource
from kfm_dagster.defs.runless import RunlessReports
from kfm_dagster.errors import ContractError, QueueUnavailableError
from kfm_dagster.governance.log import Decision
from kfm_dagster.governance.switches import EVERY_DATASET
from kfm_dagster.ingest import chain
from kfm_dagster.ingest.evidence import EvidenceCollector
from kfm_dagster.ingest.intake import IntakeReport, take_in
from kfm_dagster.ingest.nodes import MessageParse, StacRegister
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.notifications.sqs import LONG_POLL_SECONDS
from kfm_dagster.worker import resident
from kfm_dagster.worker.resident import LOOK_SECONDS, RunLocks, WorkedBatch, Worker
from kfm_dagster_tests.factories import envelope
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import (
    DATASET,
    PARTITION,
    Clock,
    CrashError,
    Failpoint,
    FakeQueue,
    announce,
    assert_conserved,
    deliver,
    enqueue,
    put,
    run_pending,
    take,
    volumes,
)
from kfm_dagster_tests.integration.face import Face, materialisations
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.clause("BEY-16")

KILLED, LIVING = "6f0e0d0c-0b0a-4908-8706-050403020100", "7f0e0d0c-0b0a-4908-8706-050403020100"
"""Run ids of workers, which are not Dagster runs."""


@dataclass
class Time:
    """The worker's `time`: a pause moves the pipeline's clock and takes no real time."""

    clock: Clock
    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.clock.forward(seconds)


@dataclass
class Desk:
    """Workers over a pipeline, with the reported batches, their times, and the printed lines."""

    pipeline: Pipeline
    time: Time
    batches: list[WorkedBatch] = field(default_factory=list)
    reported: list[float] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)

    def worker(self) -> Worker:
        """Return a newly started worker."""
        locks = RunLocks.of(self.pipeline.settings)
        return Worker(pipeline=self.pipeline, locks=locks, report=self.report, warn=self.printed.append)

    def report(self, batch: WorkedBatch) -> None:
        """Record a batch."""
        self.batches.append(batch)
        self.reported.append(self.time.now)

    def work(self, **more: Any) -> None:
        """Work until nothing is pending."""
        self.worker().work(**{"until_empty": True, **more})
        assert_conserved(self.pipeline)

    def work_until(self, seconds: float) -> None:
        """Work for this many seconds of simulated time."""
        worker = self.worker()
        self.ends = (worker, self.time.now + seconds)
        worker.work()
        assert_conserved(self.pipeline)

    ends: tuple[Worker, float] | None = None


@pytest.fixture
def desk(pipeline: Pipeline, queue: FakeQueue, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A worker that never waits in real time, neither idle nor at the queue."""
    desk = Desk(pipeline, Time(pipeline.clock))
    receive = queue.receive

    def receiving(max_messages: int, *, wait_seconds: int = 0, **more: Any) -> list[Any]:
        if desk.ends is not None and desk.time.now >= desk.ends[1]:
            desk.ends[0].stop()
        messages = receive(max_messages, **more)
        if not messages:
            desk.time.sleep(wait_seconds)
        return messages

    monkeypatch.setattr(queue, "receive", receiving)
    monkeypatch.setattr(resident, "time", desk.time)
    return desk


@pytest.fixture
def announced(pipeline: Pipeline, queue: FakeQueue) -> Callable[[int], object]:
    """Return a function that stores DAY's first volumes and queues a message of each."""
    return lambda count: enqueue(pipeline, queue, *volumes(count))


def test_messages_of_the_queue_are_ingested_and_acknowledged_in_one_batch(
    desk: Desk, announced: Callable[[int], object], queue: FakeQueue
) -> None:
    announced(3)
    desk.work()
    assert traces.statuses(desk.pipeline) == {Status.SUCCEEDED: 3}
    assert len(queue.deleted) == 3
    assert len(traces.catalog_items(desk.pipeline)) == 3
    [batch] = desk.batches
    printed = batch.as_json()
    assert printed.pop("seconds") >= 0
    assert printed == {
        "dataset": DATASET,
        "partition": PARTITION,
        "run_id": batch.run_id,
        "units": 3,
        "succeeded": 3,
        "retrying": 0,
        "quarantined": 0,
        "lost": 0,
    }
    assert {record.ingest_run_id for record in traces.records(desk.pipeline).values()} == {batch.run_id}
    assert desk.printed == []


@pytest.mark.parametrize(("per_read", "at_most"), [(2, 5), (9, 4)])
def test_a_worker_takes_only_as_many_units_as_it_can_ingest_soon(
    per_read: int,
    at_most: int,
    desk: Desk,
    announced: Callable[[int], object],
    queue: FakeQueue,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests: list[tuple[int, int]] = []
    received = queue.receive

    def receive(max_messages: int, *, max_units: int, **more: Any) -> list[Any]:
        requests.append((max_messages, max_units))
        return received(max_messages, **more)

    monkeypatch.setattr(queue, "receive", receive)
    monkeypatch.setattr(resident, "UNITS_PER_READ", per_read)
    desk.pipeline.settings = desk.pipeline.settings.model_copy(
        update={"read_concurrency": 2, "max_units_per_run": at_most}
    )
    announced(11)
    desk.work(max_batches=1)
    assert [batch.units for batch in desk.batches] == [4]
    assert len(queue.waiting) == 7

    # Units that another worker recorded and did not claim are taken in batches of the same size.
    take(desk.pipeline, *queue.waiting)
    queue.waiting.clear()
    desk.work(max_batches=1)
    assert [batch.units for batch in desk.batches] == [4, 4]
    desk.work()
    assert [batch.units for batch in desk.batches] == [4, 4, 3]
    # A request is limited in units, too, because a message can have many records.
    assert set(requests) == {(4, 4)}


def test_after_a_full_last_batch_the_worker_does_not_take_a_reused_output_for_work(
    desk: Desk, announced: Callable[[int], object]
) -> None:
    desk.pipeline.settings = desk.pipeline.settings.model_copy(update={"max_units_per_run": 4})
    announced(8)
    desk.work(max_batches=5)
    assert [batch.units for batch in desk.batches] == [4, 4]
    assert traces.statuses(desk.pipeline) == {Status.SUCCEEDED: 8}


def test_an_idle_worker_uses_long_polling(desk: Desk, queue: FakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    worker = desk.worker()

    def receive(max_messages: int, *, wait_seconds: int, **_: Any) -> list[Any]:
        waits.append(wait_seconds)
        if len(waits) == 3:
            worker.stop()
        return []

    monkeypatch.setattr(queue, "receive", receive)
    worker.work()
    assert waits == [LONG_POLL_SECONDS] * 3


@pytest.mark.clause("WAL-10")
@pytest.mark.parametrize("why", ["off", "full"])
def test_a_worker_sleeps_while_it_is_not_allowed_to_receive(
    why: str, desk: Desk, announced: Callable[[int], object], queue: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced(2)
    if why == "off":
        desk.pipeline.ledger.switches.engage(EVERY_DATASET, Decision(actor="person", reason="an exercise"))
    else:
        take(desk.pipeline, *queue.receive(1, budget_seconds=0))
        in_work(desk.pipeline, LIVING)
        desk.pipeline.settings = desk.pipeline.settings.model_copy(update={"max_in_flight_units": 1})
    receives, worker, rounds = queue.receives, desk.worker(), itertools.count(1)

    def taking(*arguments: Any, **more: Any) -> IntakeReport:
        if next(rounds) == 2:
            worker.stop()
        return take_in(*arguments, **more)

    monkeypatch.setattr(resident, "take_in", taking)
    worker.work()
    assert (queue.receives - receives, round(desk.time.now, 6)) == (0, LONG_POLL_SECONDS)


@pytest.mark.clause("SEC-12")
@pytest.mark.parametrize(("received", "every"), [(1, 60), (0, 20)], ids=["busy", "idle"])
def test_a_busy_worker_collects_evidence_once_a_minute_and_an_idle_worker_in_every_round(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, received: int, every: int
) -> None:
    rounds = iter(range(0, 121, 20))
    collected: list[float] = []

    def take_in(*_: object, **__: object) -> IntakeReport:
        desk.time.now = next(rounds)
        if desk.time.now == 120:
            worker.stop()
        return IntakeReport(received=received)

    monkeypatch.setattr(resident, "take_in", take_in)
    monkeypatch.setattr(EvidenceCollector, "collect", lambda _: collected.append(desk.time.now))
    worker = desk.worker()
    worker.work()
    assert collected == list(range(0, 121, every))


def in_work(pipeline: Pipeline, run_id: str) -> None:
    """Claim the pending units for a run, without further steps."""
    dies_at = Failpoint(operator=StacRegister.operator, point="computed")
    with pytest.raises(CrashError):
        run_pending(pipeline, run_id, dies_at=dies_at)


@pytest.mark.clause("BEY-14", "WAL-10")
def test_a_worker_starts_past_and_current_days_with_live_units_unless_the_dataset_is_switched_off(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    today = desk.pipeline.clock().replace(hour=1)
    units = {
        "today": envelope(time_range_start=today),
        "earlier": envelope(time_range_start=today - timedelta(days=1)),
        "tomorrow": envelope(time_range_start=today + timedelta(days=1)),
        "off": envelope(time_range_start=today, dataset="hrrr", object_uri="s3://noaa-hrrr-bdp-pds/a.grib2"),
    }
    own_tx(desk.pipeline.ledger).ensure(units.values())
    own_tx(desk.pipeline.ledger).ensure([envelope(time_range_start=today - timedelta(days=2))], lane=Lane.BULK)
    desk.pipeline.ledger.switches.engage("hrrr", Decision(actor="person", reason="an exercise"))
    begun: list[tuple[str, str, Lane | None]] = []

    def run(first: MessageParse, **_: object) -> list[SimpleNamespace]:
        begun.append((first.dataset, first.partition, first.lane))
        return [SimpleNamespace(envelopes=[], skipped=None)]

    monkeypatch.setattr(resident, "run_chain", run)
    desk.work_until(1)
    days = [units[name].time_range_start.date().isoformat() for name in ("earlier", "today")]
    assert begun[:2] == [(DATASET, day, Lane.LIVE) for day in days]
    assert {day for _, day, _ in begun} == set(days)
    assert (desk.batches, desk.printed) == ([], [])


@pytest.mark.parametrize(
    ("seen_after", "worked_at"),
    # The units are seen at 5 s and taken 30 s later, or taken immediately if the worker's first check sees them.
    [(2.0, 35.0), (None, 0.0)],
)
def test_pending_units_that_another_process_recorded_are_taken_after_a_delay(
    seen_after: float | None, worked_at: float, desk: Desk, objects: Path, queue: FakeQueue
) -> None:
    put(objects, volumes(1))
    message = announce([volumes(1)[0].event()], registry=desk.pipeline.registry)
    receive = queue.receive

    def receiving(*arguments: Any, **more: Any) -> list[Any]:
        if seen_after is not None and desk.time.now == 0:
            messages = receive(*arguments, **more)
            take(desk.pipeline, message)
            return messages
        return receive(*arguments, **more)

    queue.receive = receiving
    if seen_after is None:
        take(desk.pipeline, message)
    desk.work_until(60)
    assert (desk.reported, desk.printed) == ([worked_at], [])


def test_a_due_retry_is_made_at_the_next_check(desk: Desk, objects: Path, queue: FakeQueue) -> None:
    [item] = volumes(1)
    queue.waiting.append(announce([item.event()], registry=desk.pipeline.registry))
    began = desk.pipeline.clock()
    desk.work_until(1)
    [record] = traces.records(desk.pipeline).values()
    assert (record.status, record.next_attempt_at is None) == (Status.FAILED, False)
    put(objects, [item])
    desk.work_until(1000)
    due = (record.next_attempt_at - began).total_seconds()
    assert due <= desk.reported[1] < due + LOOK_SECONDS
    assert traces.statuses(desk.pipeline) == {Status.SUCCEEDED: 1}


@pytest.mark.clause("WSM-11")
def test_claims_of_a_killed_worker_are_released_without_delay_but_not_claims_of_a_live_worker(
    desk: Desk, announced: Callable[[int], object], queue: FakeQueue
) -> None:
    pipeline = desk.pipeline
    announced(2)
    locks = RunLocks.of(pipeline.settings)
    folder = pipeline.settings.home / "workers" / socket.gethostname()
    with locks.hold(LIVING):
        # The file of an ended run exists, and no process locks it.
        (folder / KILLED).touch()
        # The first dot of the name shows that the run is starting and has not locked its file yet.
        (folder / ".beginning").touch()
        for message, run_id in zip(queue.receive(10, budget_seconds=0), (KILLED, LIVING), strict=True):
            take(pipeline, message)
            in_work(pipeline, run_id)
        assert locks.dead() == [KILLED]

        desk.work(until_empty=False, max_batches=1)
        by_run = Counter((record.ingest_run_id, record.status) for record in traces.records(pipeline).values())
        [batch] = desk.batches
        assert by_run == {(batch.run_id, Status.SUCCEEDED): 1, (LIVING, Status.IN_PROGRESS): 1}
        assert any("requeued 1 unit" in line for line in desk.printed)
        assert {file.name for file in folder.iterdir()} == {LIVING, ".beginning"}
        assert pipeline.nodes.intents.pending_runs() == [LIVING]
        assert pipeline.stages.lifecycle.store.unfinished_runs() == [LIVING]
    assert not (folder / LIVING).exists()


@pytest.mark.clause("WSM-11")
def test_the_sensor_treats_a_workers_run_as_alive_during_its_lease(face: Face) -> None:
    clock = face.pipeline.clock = Clock()
    deliver(face.pipeline, *volumes(1))
    in_work(face.pipeline, LIVING)
    for _ in range(3):
        face.tick("nodd_ledger")
        assert traces.statuses(face.pipeline) == {Status.IN_PROGRESS: 1}
        assert face.pipeline.nodes.intents.pending_runs() == [LIVING]
        assert face.pipeline.stages.lifecycle.store.unfinished_runs() == [LIVING]

    clock.forward(2 * face.pipeline.settings.lease_seconds)
    face.tick("nodd_ledger")
    [record] = traces.records(face.pipeline).values()
    assert (record.status, record.last_error_code) == (Status.PENDING, "lease_expired")
    clock.forward(60)
    face.tick("nodd_ledger")
    assert face.pipeline.nodes.intents.pending_runs() == []
    assert face.pipeline.stages.lifecycle.store.unfinished_runs() == []


def test_the_sensor_gives_a_workers_run_a_minute_to_claim(face: Face) -> None:
    clock = face.pipeline.clock = Clock()
    deliver(face.pipeline, *volumes(1))
    dies_at = Failpoint(operator=MessageParse.operator, point="computed")
    with pytest.raises(CrashError):
        run_pending(face.pipeline, LIVING, dies_at=dies_at)
    for left, seconds in (([LIVING], 30), ([LIVING], 30), ([], 0)):
        face.tick("nodd_ledger")
        assert face.pipeline.stages.lifecycle.store.unfinished_runs() == left
        clock.forward(seconds)
    assert face.pipeline.nodes.intents.pending_runs() == []
    face.tick("nodd_ledger")
    assert PipelineResource(wal=WalResource(), queue=SqsQueueResource()).state().unleased == {}


@pytest.fixture
def registering(monkeypatch: pytest.MonkeyPatch, desk: Desk) -> Callable[..., list[float]]:
    """Return a function that makes the catalog fail with errors, the last first; it returns the times of writes."""

    def failing(*failures: Exception) -> list[float]:
        registered, errors, times = Catalog.register, list(failures), list[float]()

        def register(*arguments: Any, **more: Any) -> Any:
            times.append(desk.time.now)
            if errors:
                raise errors.pop()
            return registered(*arguments, **more)

        monkeypatch.setattr(Catalog, "register", register)
        return times

    return failing


WRONG = ContractError(observed="an error that no second try repairs")


@pytest.mark.clause("PCS-03")
def test_a_day_whose_run_fails_is_rolled_back_and_retried_after_growing_pauses(
    desk: Desk, announced: Callable[[int], object], registering: Callable[..., list[float]]
) -> None:
    announced(2)
    times = registering(WRONG, WRONG)
    desk.work()
    assert times == [0, 5, 15]
    assert traces.statuses(desk.pipeline) == {Status.SUCCEEDED: 2}
    assert {record.attempts for record in traces.records(desk.pipeline).values()} == {3}
    lines = [line for line in desk.printed if line.startswith(f"{DATASET} {PARTITION}: ") and "no second try" in line]
    assert [line.rpartition("; ")[2] for line in lines] == ["next try of the day in 5 s", "next try of the day in 10 s"]
    for wal_id in [record.wal_id for record in traces.records(desk.pipeline).values()]:
        assert "run_rolled_back" in [entry.reason for entry in own_tx(desk.pipeline.ledger).history(wal_id)]
    assert len(traces.catalog_items(desk.pipeline)) == 2


def test_claims_of_a_run_that_cannot_be_rolled_back_are_released_at_the_next_check(
    desk: Desk,
    announced: Callable[[int], object],
    registering: Callable[..., list[float]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    announced(1)
    times = registering(WRONG)
    monkeypatch.setattr(chain, "roll_back_or_leave", lambda *_: None)
    desk.work_until(2 * LOOK_SECONDS)
    assert times == [0, 5]
    assert traces.statuses(desk.pipeline) == {Status.SUCCEEDED: 1}
    [record] = traces.records(desk.pipeline).values()
    assert "run_rolled_back" not in [entry.reason for entry in own_tx(desk.pipeline.ledger).history(record.wal_id)]


@pytest.mark.clause("PCS-04")
def test_a_stage_with_a_briefly_unavailable_store_is_retried_in_its_run(
    desk: Desk, announced: Callable[[int], object], registering: Callable[..., list[float]]
) -> None:
    announced(1)
    registering(OSError("away for a moment"))
    desk.work()
    assert {(record.status, record.attempts) for record in traces.records(desk.pipeline).values()} == {
        (Status.SUCCEEDED, 1)
    }


def test_an_unreachable_queue_prints_a_line_and_is_retried_with_growing_pauses(
    desk: Desk, announced: Callable[[int], object], queue: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced(1)
    away = QueueUnavailableError(observed="no answer for a moment")
    receive, answers = queue.receive, iter([away] * 9 + [None, ValueError("odd"), away])

    def receiving(*arguments: Any, **more: Any) -> Sequence[Any]:
        if (failure := next(answers, None)) is not None:
            raise failure
        return receive(*arguments, **more)

    monkeypatch.setattr(queue, "receive", receiving)
    desk.work_until(2000)
    assert traces.statuses(desk.pipeline) == {Status.SUCCEEDED: 1}
    pauses = [5, 10, 20, 40, 80, 160, 320, 600, 600, 5, 10]
    assert [line.rpartition("; ")[2] for line in desk.printed] == [f"again in {pause} s" for pause in pauses]
    assert desk.printed[-2].startswith("ValueError: odd; ")
    assert not desk.printed[-1].startswith("QueueUnavailableError")


def _reported(instance: dg.DagsterInstance) -> list[tuple[dg.AssetKey, str | None, str, dict[str, Any]]]:
    reported = []
    for key in asset_keys(DATASET):
        for record in instance.fetch_materializations(key, limit=100).records:
            event = record.asset_materialization
            shown = {name: value.value for name, value in event.metadata.items()}
            reported.append((key, event.partition, record.run_id, shown))
    return reported


def test_a_batch_gives_one_materialisation_per_asset_with_the_metadata_of_a_run_but_without_run_id(
    desk: Desk,
    announced: Callable[[int], object],
    dagster_home: dg.DagsterInstance,
    tmp_path: Path,
    objects: Path,
    face: Face,
) -> None:
    put(objects, volumes(1))
    of_run = materialisations(face.ingest(partition=PARTITION))
    announced(3)
    reports = RunlessReports(tmp_path / "dagster", desk.pipeline, warn=desk.printed.append)
    worker = desk.worker()
    worker.report = reports.report
    worker.work(until_empty=True)
    reports.close()
    assert desk.printed == []
    reported = _reported(dagster_home)
    assert [(key, partition, run_id) for key, partition, run_id, _ in reported] == [
        (key, PARTITION, "") for key in asset_keys(DATASET)
    ]
    assert {key.path[-1]: shown.keys() for key, _, _, shown in reported} == {
        noun: shown.keys() for noun, shown in of_run.items()
    }
    assert reported[-1][3]["day"] == "3 of 3 succeeded"
    assert reported[-1][3]["run_succeeded"] == 2


def test_an_unreachable_dagster_neither_fails_nor_delays_units_and_one_line_is_printed(
    desk: Desk, announced: Callable[[int], object], tmp_path: Path
) -> None:
    ingested = threading.Event()

    def warn(line: str) -> None:
        # Dagster's storage does not answer before the batch has ended.
        assert ingested.wait(10)
        desk.printed.append(line)

    reports = RunlessReports(tmp_path / "nowhere", desk.pipeline, warn=warn)
    for count in (1, 2):
        announced(count)
        worker = desk.worker()
        worker.report = reports.report
        worker.work(until_empty=True)
        ingested.set()
    reports.close()
    assert traces.statuses(desk.pipeline) == {Status.SUCCEEDED: 2}
    [line] = desk.printed
    assert line.startswith("a report to Dagster failed, the next follows in 60 s: ")
    assert not (tmp_path / "nowhere").exists()
