"""Live messages are received, planned and claimed before bulk work, which still progresses."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import dagster as dg
import pytest
import yaml

from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.defs.chain import asset_keys
from kfm_dagster.defs.run_storage import run_slots
from kfm_dagster.deployment.local import dagster_yaml_for
from kfm_dagster.ingest.nodes import ProvenanceEmit
from kfm_dagster.ingest.pipeline import utc_now
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.settings import Settings
from kfm_dagster_tests.factories import START, envelope
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import PARTITION, FakeQueue, deliver, enqueue, put, volumes
from kfm_dagster_tests.integration.face import Face, unit_check
from kfm_dagster_tests.transactions import own_tx

BULK_DAY = START.date().isoformat()
UNITS_PER_RUN = 40
MAX_IN_FLIGHT = 1_000
BULK_UNITS = 1_250
"""Units of a busy day: more than KFM_MAX_IN_FLIGHT_UNITS."""


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance with the run queue of the shipped dagster.yaml."""
    (tmp_path / "dagster").mkdir()
    shipped = yaml.safe_load(dagster_yaml_for({}, Path()))
    overrides = {key: shipped[key] for key in ("run_coordinator", "concurrency")}
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster"), overrides=overrides) as local:
        yield local


@pytest.fixture
def small_runs(face: Face, monkeypatch: pytest.MonkeyPatch) -> Iterator[Face]:
    """A deployment with small limits of units per run and in flight."""
    monkeypatch.setenv("KFM_MAX_UNITS_PER_RUN", str(UNITS_PER_RUN))
    monkeypatch.setenv("KFM_MAX_IN_FLIGHT_UNITS", str(MAX_IN_FLIGHT))
    reopened = face.reopened()
    yield reopened
    reopened.pipeline.close()


def bulk_units(face: Face, units: int) -> None:
    """Record pending bulk units."""
    own_tx(face.pipeline.ledger).ensure([envelope(number) for number in range(units)], lane=Lane.BULK)


def requested(tick: Any) -> list[tuple[str, str]]:
    """Return lane and partition of each run request of a tick."""
    return [(request.tags["kfm/lane"], request.partition_key) for request in tick.run_requests]


def active(face: Face, lane: Lane, partition: str, **tags: str) -> dg.DagsterRun:
    """Record a requested run as started."""
    return face.instance.create_run_for_job(
        face.repository.get_job("ingest"),
        status=dg.DagsterRunStatus.STARTED,
        tags={"kfm/lane": lane.value, "dagster/partition": partition, **tags},
    )


@pytest.mark.clause("BEY-14", "DAG-04")
def test_a_live_message_is_ingested_before_the_bulk_units_of_a_busy_day(small_runs: Face, queue: FakeQueue) -> None:
    # A run has claimed as many bulk units as their share allows; the other bulk units are pending.
    face = small_runs
    bulk_units(face, BULK_UNITS)
    face.tick("nodd_ledger")
    [bulk] = face.tick("nodd_ledger").run_requests
    assert (bulk.tags["kfm/lane"], bulk.partition_key) == ("bulk", BULK_DAY)
    assert bulk.run_config["ops"]["nexrad_l2__message_parse"]["config"]["lane"] == Lane.BULK.name
    working = active(face, Lane.BULK, BULK_DAY)
    claimed = own_tx(face.pipeline.ledger).claim(
        dataset="nexrad-l2", partition=BULK_DAY, run_id=working.run_id, limit=UNITS_PER_RUN, lane=Lane.BULK
    )
    assert len(claimed) == UNITS_PER_RUN

    # A message for the same dataset is received, planned and ingested without waiting for the bulk units.
    enqueue(face.pipeline, queue, *volumes(1))
    [live] = face.tick("nodd_messages").run_requests
    assert (live.tags["kfm/lane"], live.partition_key) == ("live", PARTITION)
    assert int(live.tags["dagster/priority"]) > 0 > int(bulk.tags["dagster/priority"])
    assert face.launch(live).success
    [record] = own_tx(face.pipeline.ledger).find(partition=PARTITION)
    assert (record.status, record.lane) == (Status.SUCCEEDED, Lane.LIVE)

    # No further bulk run is requested while the bulk share is used.
    assert [requested(face.tick("nodd_ledger")) for _ in range(2)] == [[], []]


@pytest.mark.clause("BEY-14")
def test_bulk_work_progresses_under_any_amount_of_live_work(small_runs: Face) -> None:
    """Live runs leave a slot for pending bulk work, which would otherwise starve because they have priority."""
    face = small_runs
    bulk_units(face, 10 * UNITS_PER_RUN)
    slots = run_slots(face.instance)
    assert slots == 3
    days = [START + timedelta(days=number) for number in range(1, 8)]
    own_tx(face.pipeline.ledger).ensure([envelope(0, time_range_start=day) for day in days])
    face.tick("nodd_ledger")
    requests = requested(face.tick("nodd_ledger"))
    assert requests == [*(("live", day.date().isoformat()) for day in days[: slots - 1]), ("bulk", BULK_DAY)]

    for lane, partition in requests[: slots - 1]:
        active(face, Lane(lane), partition)
    assert requested(face.tick("nodd_ledger")) == [("bulk", BULK_DAY)]


@pytest.mark.clause("BEY-14")
def test_the_limits_of_the_shipped_run_queue_equal_the_default_share_of_bulk_runs() -> None:
    queue = yaml.safe_load(dagster_yaml_for({}, Path()))["concurrency"]["runs"]
    limits = {limit["key"]: limit["limit"] for limit in queue["tag_concurrency_limits"]}
    assert set(limits.values()) == {Settings().bulk_runs(queue["max_concurrent_runs"])}
    assert limits["kfm/lane"] < queue["max_concurrent_runs"]


@pytest.mark.clause("WSM-11", "BEY-02")
def test_expired_leases_are_recovered_while_dagsters_run_storage_is_unavailable(
    face: Face, contracts: ContractRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver(face.pipeline, *volumes(1))
    long_ago = Ledger(
        face.pipeline.database,
        registry=contracts,
        worker_id="gone",
        clock=lambda: utc_now() - timedelta(hours=2),
    )
    [unit] = own_tx(long_ago).claim(dataset="nexrad-l2", partition=PARTITION, run_id="lost", limit=1)

    with monkeypatch.context() as patch:
        patch.setattr(dg.DagsterInstance, "get_runs", Mock(side_effect=ConnectionError("the run storage is away")))
        with pytest.raises(Exception, match="the run storage is away"):
            face.tick("nodd_ledger")
    lost, readmitted = own_tx(face.pipeline.ledger).history(unit.wal_id)[-2:]
    assert (lost.to_status, lost.reason, lost.actor) == (Status.FAILED, "lease_expired", "local")
    assert readmitted.to_status is Status.PENDING
    assert own_tx(face.pipeline.ledger.leases).all() == []


@pytest.mark.clause("BEY-13", "BEY-14", "DAG-05", "DAG-09")
def test_a_manual_run_is_bulk_work_and_reports_units_that_another_run_claimed(face: Face, objects: Path) -> None:
    steps = face.repository.assets_defs_by_key
    assert {steps[key].op.pool for key in asset_keys("nexrad-l2")} == {"nexrad-l2"}
    put(objects, volumes(2))
    statuses: list[str] = []

    def take_away(*_: object, **__: object) -> None:
        own_tx(face.pipeline.ledger).release_lost(run_ids=face.pipeline.ledger.in_progress_runs())
        statuses.append("taken")

    with pytest.MonkeyPatch.context() as patch:
        emit = ProvenanceEmit.transform
        patch.setattr(ProvenanceEmit, "transform", lambda self: (take_away(), emit(self))[1])
        result = face.ingest(partition=PARTITION)
    assert statuses
    assert result.dagster_run.tags["kfm/lane"] == "bulk"
    assert {record.lane for record in traces.records(face.pipeline).values()} == {Lane.BULK}
    check = unit_check(result)
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert check.description == "2 of 2 units of this run were claimed by another run before this run settled them"
    assert check.metadata["run_lost"].value == 2
