"""Lineage: once per unit and path, whatever crashes, fails or runs at the same time."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kfm_dagster.contracts.envelope import ProvenanceStatus
from kfm_dagster.contracts.issues import Severity
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.lineage.backend import BackendUnavailableError
from kfm_dagster.lineage.files import FolderFiles
from kfm_dagster.lineage.openlineage import Event
from kfm_dagster.lineage.store import ORPHAN_SECONDS, Lineage
from kfm_dagster.lineage.unit import LineagePath, LineageUnit
from kfm_dagster.storage.database import Database, Transaction
from kfm_dagster_tests.lineage.units import ingest_run, once_each, readable, registered, units


@pytest.fixture(scope="module")
def contract(contracts: ContractRegistry) -> DatasetContract:
    return contracts["goes-abi"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "lineage"


@pytest.fixture
def lineage(database: Database, root: Path) -> Lineage:
    return Lineage.open(database, url=str(root))


class Crash(BaseException):
    """The process dies here: nothing may catch it."""


def crash_at(step: int, patch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Die before or after the step-th thing that leaves a trace; returns a counter of such moments."""
    passed = 0

    def moment() -> None:
        nonlocal passed
        passed += 1
        if passed == step:
            raise Crash

    def around(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def call(*args: Any, **named: Any) -> Any:
            moment()
            result = original(*args, **named)
            moment()
            return result

        patch.setattr(owner, name, call)

    around(os, "fsync")
    around(Path, "replace")
    around(Transaction, "run")
    transaction = Database.transaction

    @contextmanager
    def committed(self: Database) -> Iterator[Transaction]:
        with transaction(self) as tx:
            yield tx
        moment()

    patch.setattr(Database, "transaction", committed)
    return lambda: passed


@pytest.mark.clause("OPR-11", "WAL-05")
def test_a_crash_at_any_moment_leaves_each_unit_once_after_the_next_emit(
    database: Database, root: Path, contract: DatasetContract
) -> None:
    expected: list[LineageUnit] = []
    crashes = 0
    for step in range(1, 200):
        batch = units(3 * step, 3 * step + 3)
        expected += batch
        with pytest.MonkeyPatch.context() as patch:
            passed = crash_at(step, patch)
            try:
                Lineage.open(database, url=str(root)).emit(batch, run=ingest_run(), contract=contract)
            except Crash:
                crashes += 1
        # What a reader finds between crash and retry is never double and never half a batch.
        assert set(readable(root).values()) <= {1}
        retried = Lineage.open(database, url=str(root)).emit(batch, run=ingest_run(minute=9), contract=contract)
        assert {result.status for result in retried.values()} == {ProvenanceStatus.OK}
        assert readable(root) == once_each(expected)
        if passed() < step:
            break
    assert crashes == step - 1 > 30


@pytest.mark.clause("OPR-11", "WAL-05")
def test_emitting_again_writes_nothing(lineage: Lineage, root: Path, contract: DatasetContract) -> None:
    first = lineage.emit(units(0, 5), run=ingest_run(), contract=contract)
    before = files(root)
    again = lineage.emit(units(0, 5), run=ingest_run(minute=30), contract=contract)
    assert files(root) == before
    assert again == first


@pytest.mark.clause("OPR-11")
def test_a_later_emit_adds_only_what_is_missing(lineage: Lineage, root: Path, contract: DatasetContract) -> None:
    lineage.emit(units(0, 3), run=ingest_run(), contract=contract)
    before = files(root)
    lineage.emit(units(0, 5), run=ingest_run(minute=30), contract=contract)
    assert before.items() <= files(root).items()
    assert readable(root) == once_each(units(0, 5))


@pytest.mark.clause("OPR-11")
@pytest.mark.parametrize(
    ("down", "code"),
    [(LineagePath.PROV, "prov_store_unavailable"), (LineagePath.OPENLINEAGE, "openlineage_emit_failed")],
)
def test_one_path_failing_gives_partial_and_a_replay_emits_the_other(
    lineage: Lineage, root: Path, contract: DatasetContract, down: LineagePath, code: str
) -> None:
    root.mkdir()
    (root / down).write_text("a file where a folder has to be")
    results = lineage.emit(units(0, 2), run=ingest_run(), contract=contract)
    for result in results.values():
        assert result.status is ProvenanceStatus.PARTIAL
        assert [(issue.code, issue.severity) for issue in result.issues] == [(code, Severity.SUSPECT)]
    envelope = registered(0).evolve(provenance=results[registered(0).wal_id])
    assert envelope.failure is None
    (root / down).unlink()
    before = readable_files(root)
    assert before
    repaired = lineage.emit(units(0, 2), run=ingest_run(minute=30), contract=contract)
    assert {result.status for result in repaired.values()} == {ProvenanceStatus.OK}
    assert before.items() <= readable_files(root).items()
    assert readable(root) == once_each(units(0, 2))


@pytest.mark.clause("OPR-11")
def test_both_paths_failing_gives_failed_and_a_replay_emits_both(
    lineage: Lineage, root: Path, contract: DatasetContract
) -> None:
    root.write_text("a file where the root has to be")
    [result] = lineage.emit(units(0, 1), run=ingest_run(), contract=contract).values()
    assert result.status is ProvenanceStatus.FAILED
    assert [(issue.code, issue.severity) for issue in result.issues] == [
        ("openlineage_emit_failed", Severity.FAILED),
        ("prov_store_unavailable", Severity.FAILED),
    ]
    failure = registered(0).evolve(provenance=result).failure
    assert failure is not None
    root.unlink()
    lineage.emit(units(0, 1), run=ingest_run(), contract=contract)
    assert readable(root) == once_each(units(0, 1))


def test_a_failing_path_blames_only_the_units_that_it_lacks(
    lineage: Lineage, root: Path, contract: DatasetContract
) -> None:
    lineage.emit(units(0, 2), run=ingest_run(), contract=contract)
    with mock.patch.object(FolderFiles, "stage", side_effect=OSError(28, "No space left on device")):
        results = lineage.emit(units(0, 3), run=ingest_run(), contract=contract)
    statuses = [results[unit.wal_id].status for unit in units(0, 3)]
    assert statuses == [ProvenanceStatus.OK, ProvenanceStatus.OK, ProvenanceStatus.FAILED]


@pytest.mark.clause("OPR-11", "WAL-05")
def test_workers_with_overlapping_units_emit_each_once(
    database_url: str, root: Path, contract: DatasetContract
) -> None:
    Database.open(database_url).dispose()
    spans = [(0, 60), (30, 90), (60, 120), (0, 120)]
    ready = threading.Barrier(len(spans))
    statuses: list[ProvenanceStatus] = []
    errors: list[BaseException] = []

    def work(minute: int, first: int, stop: int) -> None:
        database = Database.open(database_url)
        mine = units(first, stop)
        if minute % 2:
            mine.reverse()
        try:
            ready.wait()
            worker = Lineage.open(database, url=str(root))
            results = worker.emit(mine, run=ingest_run(minute=minute), contract=contract)
            statuses.extend(result.status for result in results.values())
        except BaseException as error:  # shown by the assertion below
            errors.append(error)
        finally:
            database.dispose()

    threads = [threading.Thread(target=work, args=(10 + number, *span)) for number, span in enumerate(spans)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert set(statuses) == {ProvenanceStatus.OK}
    assert len(statuses) == sum(stop - first for first, stop in spans)
    assert readable(root) == once_each(units(0, 120))


def test_a_batch_goes_to_a_file_per_partition(lineage: Lineage, root: Path, contract: DatasetContract) -> None:
    late = registered(7)
    late = late.evolve(time_range_start=late.time_range_start.replace(day=4))
    lineage.emit([*units(0, 2), LineageUnit.of(late)], run=ingest_run(), contract=contract)
    places = Counter(name.rpartition("/")[0] for name in files(root))
    assert places == {
        f"{path}/goes-abi/{day}": 1 for path in ("openlineage", "prov") for day in ("2025-12-03", "2025-12-04")
    }


@pytest.mark.clause("WAL-14")
def test_record_run_and_activity_lead_to_each_other(
    lineage: Lineage, database: Database, root: Path, contract: DatasetContract
) -> None:
    from kfm_dagster.ledger.store import Ledger

    batch = units(0, 3)
    Ledger(
        database, registry=ContractRegistry.of([contract]), worker_id="test", clock=lambda: ingest_run().occurred_at
    ).ensure([unit.envelope for unit in batch])
    lineage.emit(batch, run=ingest_run(), contract=contract)
    unit = batch[1]
    openlineage, prov = lineage.links_of(unit.wal_id)
    assert (openlineage.lineage_id, prov.lineage_id) == (unit.openlineage_run_id, unit.activity_id)
    for link in (openlineage, prov):
        assert (link.state, link.run_id, link.object_uri) == (
            "published",
            ingest_run().run_id,
            unit.envelope.object_uri,
        )
        assert link.record_status == "pending"
        assert lineage.find(link.lineage_id) == link
        assert link.lineage_id.removeprefix("urn:uuid:") in (root / link.href).read_text(encoding="utf-8")
    assert lineage.find("urn:uuid:unknown") is None


def test_a_staged_batch_whose_file_is_gone_is_emitted_again(
    lineage: Lineage, root: Path, contract: DatasetContract
) -> None:
    with mock.patch.object(FolderFiles, "publish", side_effect=Crash), pytest.raises(Crash):
        lineage.emit(units(0, 2), run=ingest_run(), contract=contract)
    for staged in (root / ".staging").iterdir():
        staged.unlink()
    lineage.emit(units(0, 2), run=ingest_run(), contract=contract)
    assert readable(root) == once_each(units(0, 2))


def test_recovery_publishes_what_another_dataset_left(lineage: Lineage, root: Path, contract: DatasetContract) -> None:
    with mock.patch.object(FolderFiles, "publish", side_effect=Crash), pytest.raises(Crash):
        lineage.emit(units(0, 2), run=ingest_run(), contract=contract)
    assert not readable(root)
    lineage.publish_staged()
    assert {kind for kind, _ in readable(root)} == {"START", "COMPLETE"}  # it died before PROV's turn


def test_orphaned_files_are_removed_by_age(lineage: Lineage, root: Path, contract: DatasetContract) -> None:
    staging = root / ".staging"
    staging.mkdir(parents=True)
    old, young = staging / "old", staging / "young"
    for path in (old, young):
        path.write_bytes(b"left by a crash")
    long_ago = young.stat().st_mtime - ORPHAN_SECONDS - 60
    os.utime(old, (long_ago, long_ago))
    lineage.emit(units(0, 1), run=ingest_run(), contract=contract)
    assert [path.name for path in staging.iterdir()] == ["young"]


class _Backend:
    """A backend that may be down."""

    def __init__(self) -> None:
        self.down = False
        self.got: list[Event] = []

    def send(self, events: Iterable[Event]) -> None:
        for event in events:
            if self.down and event["eventType"] == "COMPLETE":
                raise BackendUnavailableError
            self.got.append(event)


def test_a_dead_backend_costs_no_unit_and_gets_everything_when_it_is_back(
    database: Database, root: Path, contract: DatasetContract
) -> None:
    backend = _Backend()
    lineage = Lineage.open(database, url=str(root), backend=backend)
    backend.down = True
    results = lineage.emit(units(0, 2), run=ingest_run(), contract=contract)
    assert {result.status for result in results.values()} == {ProvenanceStatus.OK}
    with pytest.raises(BackendUnavailableError):
        lineage.deliver()
    backend.down = False
    assert lineage.deliver() == 4
    assert lineage.deliver() == 0
    recorded = [
        json.loads(line)
        for path in root.glob("openlineage/**/*.ndjson")
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    # The first event, sent before the backend went down, comes a second time and is the same.
    assert backend.got == [recorded[0], *recorded]


def files(root: Path) -> dict[str, bytes]:
    """Everything below the root, by path."""
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def readable_files(root: Path) -> dict[str, bytes]:
    """What is published below the root, by path."""
    return {name: content for name, content in files(root).items() if not name.startswith(".staging/")}
