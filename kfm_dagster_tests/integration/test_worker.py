"""The resident worker in this process: what it takes, how it shares, what it reports, what becomes of what it held."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kfm_dagster.catalog.store import Catalog
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.defs.chain import asset_keys
from kfm_dagster.defs.runless import RunlessReports
from kfm_dagster.errors import ContractError, QueueUnavailableError
from kfm_dagster.governance.log import Decision
from kfm_dagster.governance.switches import EVERY_DATASET
from kfm_dagster.ingest import chain
from kfm_dagster.ingest.intake import IntakeReport, take_in
from kfm_dagster.ingest.nodes import MessageParse, Source, StacRegister
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.worker import resident
from kfm_dagster.worker.resident import LONG_POLL_SECONDS, WorkedBatch, Worker
from kfm_dagster.worker.run_locks import RunLocks
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import (
    DAY,
    Clock,
    CrashError,
    Failpoint,
    FakeQueue,
    announce,
    assert_conserved,
    put,
    run_chain,
    take,
    volumes,
)
from kfm_dagster_tests.integration.face import Face, materialisations

PARTITION = DAY.isoformat()
DATASET = "nexrad-l2"
KILLED, LIVING = "6f0e0d0c-0b0a-4908-8706-050403020100", "7f0e0d0c-0b0a-4908-8706-050403020100"
"""Run ids of workers, which Dagster does not know."""
ROUNDS = 10
"""More than a worker needs; it would go on until a lease ends."""


@dataclass
class Desk:
    """A worker over a pipeline, and what it said."""

    pipeline: Pipeline
    batches: list[WorkedBatch] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def worker(self) -> Worker:
        """A worker as it is started anew."""
        locks = RunLocks.of(self.pipeline.settings)
        return Worker(pipeline=self.pipeline, locks=locks, report=self.batches.append, warn=self.said.append)

    def work(self, **more: Any) -> None:
        """Work until nothing is left to do."""
        self.worker().work(**{"until_empty": True, **more})
        assert_conserved(self.pipeline)


@pytest.fixture
def desk(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A worker that does not wait for wall-clock time: a rest moves the pipeline's clock."""

    def rest(worker: Worker, seconds: float) -> None:
        clock = worker.pipeline.clock
        assert isinstance(clock, Clock)
        clock.forward(seconds)

    monkeypatch.setattr(Worker, "_rest", rest)
    return Desk(pipeline)


@pytest.fixture
def announced(pipeline: Pipeline, queue: FakeQueue, objects: Path) -> Callable[[int], None]:
    """Stores the first volumes of DAY and puts a message of each on the queue."""

    def announcing(count: int) -> None:
        put(objects, volumes(count))
        queue.waiting += [announce([item.event()], registry=pipeline.registry) for item in volumes(count)]

    return announcing


@pytest.mark.clause("BEY-16")
def test_what_the_queue_brings_is_ingested_and_acknowledged_in_one_batch(
    desk: Desk, announced: Callable[[int], None], queue: FakeQueue
) -> None:
    announced(3)
    desk.work()
    assert traces.statuses(desk.pipeline) == {Status.SUCCEEDED: 3}
    assert len(queue.deleted) == 3
    assert len(traces.items(Path(desk.pipeline.settings.catalog))) == 3
    [batch] = desk.batches
    told = batch.as_json()
    assert told.pop("seconds") >= 0
    assert told == {
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
    assert desk.said == []


@pytest.mark.clause("BEY-16")
def test_a_worker_takes_what_it_soon_works_off_and_leaves_the_rest_to_the_others(
    desk: Desk, announced: Callable[[int], None], queue: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    received = queue.receive

    def receive(max_messages: int, *, max_units: int, **more: Any) -> list[Any]:
        asked.append((max_messages, max_units))
        return received(max_messages, **more)

    monkeypatch.setattr(queue, "receive", receive)
    monkeypatch.setattr(resident, "UNITS_PER_READ", 2)
    desk.pipeline.settings = desk.pipeline.settings.model_copy(update={"read_concurrency": 2})
    announced(11)
    desk.work(max_batches=1)
    assert [batch.units for batch in desk.batches] == [4]
    assert len(queue.waiting) == 7

    # What another one has recorded and left is shared in the same parts.
    take(desk.pipeline, *queue.waiting)
    queue.waiting.clear()
    desk.work(max_batches=1)
    assert [batch.units for batch in desk.batches] == [4, 4]
    desk.work()
    assert [batch.units for batch in desk.batches] == [4, 4, 3]
    # A message may hold many records.
    assert set(asked) == {(4, 4)}


@pytest.mark.clause("BEY-16")
def test_an_idle_worker_waits_at_the_queue_and_does_not_ask_again_and_again(
    desk: Desk, queue: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.clause("BEY-16", "WAL-10")
def test_while_everything_is_switched_off_nothing_is_received_and_the_worker_rests(
    desk: Desk, announced: Callable[[int], None], queue: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced(1)
    rests: list[float] = []
    worker = desk.worker()

    def rest(_: Worker, seconds: float) -> None:
        rests.append(seconds)
        worker.stop()

    monkeypatch.setattr(Worker, "_rest", rest)
    desk.pipeline.ledger.switches.engage(EVERY_DATASET, Decision(actor="person", reason="an exercise"))
    worker.work()
    assert (queue.receives, rests) == (0, [LONG_POLL_SECONDS])


@pytest.mark.clause("BEY-16", "BEY-14")
def test_bulk_units_stay_with_the_sensors(desk: Desk, objects: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(objects, volumes(2))
    dies_at = Failpoint(operator=StacRegister.operator, point="computed")
    with pytest.raises(CrashError):
        run_chain(desk.pipeline, DATASET, PARTITION, "listing", dies_at=dies_at)
    desk.pipeline.ledger.release_lost(run_ids=["listing"])
    begun: list[object] = []
    monkeypatch.setattr(resident, "run_chain", lambda first, **_: begun.append(first))
    desk.work()
    assert (begun, desk.batches, desk.said) == ([], [], [])
    assert traces.statuses(desk.pipeline) == {Status.PENDING: 2}


@pytest.mark.clause("BEY-16")
def test_what_a_killed_worker_had_recorded_is_done_when_it_starts_again(
    desk: Desk, announced: Callable[[int], None], queue: FakeQueue
) -> None:
    announced(2)
    take(desk.pipeline, *queue.receive(10, budget_seconds=0))
    desk.work()
    assert traces.statuses(desk.pipeline) == {Status.SUCCEEDED: 2}


HOLD = """
import sys
import itertools
from pathlib import Path
from kfm_dagster.worker.run_locks import RunLocks
with RunLocks(Path(sys.argv[1])).hold(sys.argv[2]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holding() -> Iterator[Callable[[Path, str], subprocess.Popen[str]]]:
    """Starts processes that hold a run's lock."""
    started: list[subprocess.Popen[str]] = []

    def hold(folder: Path, run_id: str) -> subprocess.Popen[str]:
        path = os.pathsep.join(sys.path)
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(folder), run_id],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield hold
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.clause("BEY-16", "WSM-11")
def test_a_killed_workers_claims_come_back_at_once_and_a_living_ones_do_not(
    desk: Desk,
    announced: Callable[[int], None],
    queue: FakeQueue,
    holding: Callable[[Path, str], subprocess.Popen[str]],
) -> None:
    pipeline = desk.pipeline
    announced(2)
    messages = queue.receive(10, budget_seconds=0)
    dies_at = Failpoint(operator=StacRegister.operator, point="computed")
    locks = RunLocks.of(pipeline.settings)
    processes = {}
    for message, run_id in zip(messages, (KILLED, LIVING), strict=True):
        processes[run_id] = holding(next((pipeline.settings.home / "workers").iterdir()), run_id)
        take(pipeline, message)
        with pytest.raises(CrashError):
            run_chain(pipeline, DATASET, PARTITION, run_id, Source.LEDGER, dies_at=dies_at)
    assert locks.dead() == []
    processes[KILLED].send_signal(signal.SIGKILL)
    processes[KILLED].wait()
    assert locks.dead() == [KILLED]

    desk.work(until_empty=False, max_batches=1)
    by_run = Counter((record.ingest_run_id, record.status) for record in traces.records(pipeline).values())
    [batch] = desk.batches
    assert by_run == {(batch.run_id, Status.SUCCEEDED): 1, (LIVING, Status.IN_PROGRESS): 1}
    assert any("gave back 1 units" in line for line in desk.said)
    assert locks.dead() == []
    assert pipeline.nodes.intents.pending_runs() == [LIVING]
    assert pipeline.stages.lifecycle.store.unfinished_runs() == [LIVING]


@pytest.mark.clause("BEY-16", "WSM-11")
def test_the_sensor_takes_a_workers_run_for_alive_while_its_lease_lasts(
    face: Face, objects: Path, contracts: ContractRegistry
) -> None:
    clock = face.pipeline.clock = Clock()
    put(objects, volumes(1))
    take(face.pipeline, announce([volumes(1)[0].event()], registry=contracts))
    dies_at = Failpoint(operator=StacRegister.operator, point="computed")
    with pytest.raises(CrashError):
        run_chain(face.pipeline, DATASET, PARTITION, LIVING, Source.LEDGER, dies_at=dies_at)
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


@pytest.mark.clause("BEY-16")
def test_the_sensor_leaves_a_workers_run_that_has_not_claimed_yet_a_minute_to_do_so(
    face: Face, objects: Path, contracts: ContractRegistry
) -> None:
    clock = face.pipeline.clock = Clock()
    put(objects, volumes(1))
    take(face.pipeline, announce([volumes(1)[0].event()], registry=contracts))
    dies_at = Failpoint(operator=MessageParse.operator, point="computed")
    with pytest.raises(CrashError):
        run_chain(face.pipeline, DATASET, PARTITION, LIVING, Source.LEDGER, dies_at=dies_at)
    for left, seconds in (([LIVING], 30), ([LIVING], 30), ([], 0)):
        face.tick("nodd_ledger")
        assert face.pipeline.stages.lifecycle.store.unfinished_runs() == left
        clock.forward(seconds)
    assert face.pipeline.nodes.intents.pending_runs() == []
    face.tick("nodd_ledger")
    assert face.pipeline.asked.unleased == {}


@pytest.mark.clause("BEY-16", "PCS-03")
def test_a_day_whose_run_fails_is_rolled_back_tried_again_and_costs_the_others_nothing(
    desk: Desk, announced: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    announced(2)
    registered, failures = Catalog.register, [ContractError(observed="what no second try helps with")]

    def register(*given: Any, **more: Any) -> Any:
        if failures:
            raise failures.pop()
        return registered(*given, **more)

    monkeypatch.setattr(Catalog, "register", register)
    monkeypatch.setattr(resident, "FIRST_PAUSE_SECONDS", 0.0)
    desk.work()
    assert traces.statuses(desk.pipeline) == {Status.SUCCEEDED: 2}
    assert {record.attempts for record in traces.records(desk.pipeline).values()} == {2}
    assert any(line.startswith(f"{DATASET} {PARTITION}: ") and "no second try" in line for line in desk.said)
    for wal_id in [record.wal_id for record in traces.records(desk.pipeline).values()]:
        assert "run_rolled_back" in [entry.reason for entry in desk.pipeline.ledger.history(wal_id)]
    assert len(traces.items(Path(desk.pipeline.settings.catalog))) == 2


@pytest.mark.clause("BEY-16")
def test_what_a_run_holds_that_cannot_be_rolled_back_is_given_back_at_the_next_look(
    desk: Desk, announced: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    announced(1)
    registered, failures = Catalog.register, [ContractError(observed="what no second try helps with")]

    def register(*given: Any, **more: Any) -> Any:
        if failures:
            raise failures.pop()
        return registered(*given, **more)

    monkeypatch.setattr(Catalog, "register", register)
    monkeypatch.setattr(chain, "roll_back_or_leave", lambda *_: None)
    monkeypatch.setattr(resident, "FIRST_PAUSE_SECONDS", 0.0)
    worker, rounds = desk.worker(), itertools.count(1)

    def take(*given: Any, **more: Any) -> IntakeReport:
        if next(rounds) == ROUNDS:
            worker.stop()
        return take_in(*given, **more)

    monkeypatch.setattr(resident, "take_in", take)
    worker.work(until_empty=True)
    assert traces.statuses(desk.pipeline) == {Status.SUCCEEDED: 1}
    [record] = traces.records(desk.pipeline).values()
    assert "run_rolled_back" not in [entry.reason for entry in desk.pipeline.ledger.history(record.wal_id)]


@pytest.mark.clause("BEY-16", "PCS-04")
def test_a_stage_whose_store_is_away_for_a_moment_is_tried_again_in_its_run(
    desk: Desk, announced: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    announced(1)
    registered, failures = Catalog.register, [OSError("away for a moment")]

    def register(*given: Any, **more: Any) -> Any:
        if failures:
            raise failures.pop()
        return registered(*given, **more)

    monkeypatch.setattr(Catalog, "register", register)
    desk.work()
    assert {(record.status, record.attempts) for record in traces.records(desk.pipeline).values()} == {
        (Status.SUCCEEDED, 1)
    }


@pytest.mark.clause("BEY-16")
def test_a_queue_that_does_not_answer_is_a_line_and_asked_again(
    desk: Desk, announced: Callable[[int], None], queue: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced(1)
    receive, failures = queue.receive, [QueueUnavailableError(observed="a moment without")] * 2

    def receiving(*given: Any, **more: Any) -> Sequence[Any]:
        if failures:
            raise failures.pop()
        return receive(*given, **more)

    monkeypatch.setattr(queue, "receive", receiving)
    desk.work()
    assert traces.statuses(desk.pipeline) == {Status.SUCCEEDED: 1}
    assert [line.rpartition("; ")[2] for line in desk.said] == ["again in 5 s", "again in 10 s"]


@pytest.fixture
def dagster_home(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance on disk, below `dagster`."""
    (tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as instance:
        yield instance


def _reported(instance: dg.DagsterInstance) -> list[tuple[dg.AssetKey, str | None, str, dict[str, Any]]]:
    found = []
    for key in asset_keys(DATASET):
        for record in instance.fetch_materializations(key, limit=100).records:
            event = record.asset_materialization
            assert event is not None
            shown = {name: value.value for name, value in event.metadata.items()}
            found.append((key, event.partition, record.run_id, shown))
    return found


@pytest.mark.clause("BEY-16")
def test_a_batch_is_one_materialisation_of_each_asset_without_a_run_that_shows_what_a_runs_shows(
    desk: Desk,
    announced: Callable[[int], None],
    dagster_home: dg.DagsterInstance,
    tmp_path: Path,
    objects: Path,
    face: Face,
) -> None:
    put(objects, volumes(1))
    of_run = materialisations(face.execute("ingest_nexrad_l2", partition=PARTITION))
    announced(3)
    reports = RunlessReports(tmp_path / "dagster", desk.pipeline, warn=desk.said.append)
    worker = desk.worker()
    worker.report = reports.report
    worker.work(until_empty=True)
    reports.close()
    assert desk.said == []
    found = _reported(dagster_home)
    assert [(key, partition, run_id) for key, partition, run_id, _ in found] == [
        (key, PARTITION, "") for key in asset_keys(DATASET)
    ]
    assert {key.path[-1]: shown.keys() for key, _, _, shown in found} == {
        noun: shown.keys() for noun, shown in of_run.items()
    }
    assert found[-1][3]["day"] == "3 of 3 succeeded"
    assert found[-1][3]["run_succeeded"] == 2


@pytest.mark.clause("BEY-16")
def test_a_dagster_that_does_not_answer_costs_no_unit_and_one_line(
    desk: Desk, announced: Callable[[int], None], queue: FakeQueue, tmp_path: Path
) -> None:
    reports = RunlessReports(tmp_path / "nowhere", desk.pipeline, warn=desk.said.append)
    for count in (1, 2):
        announced(count)
        worker = desk.worker()
        worker.report = reports.report
        worker.work(until_empty=True)
    assert traces.statuses(desk.pipeline) == {Status.SUCCEEDED: 2}
    [line] = desk.said
    assert line.startswith("Dagster is not told of what is stored, again in 60 s: ")
    assert not (tmp_path / "nowhere").exists()
