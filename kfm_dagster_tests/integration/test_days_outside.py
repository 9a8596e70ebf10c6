"""Days outside the partitions, through the real sensors: ignored at the door, or kept until Dagster knows their day."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

import pytest

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.defs.resources import SqsQueueResource, open_pipeline
from kfm_dagster.demo.samples import hrrr
from kfm_dagster.governance.log import Decision
from kfm_dagster.ledger.deliveries import DeliveryState
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.settings import Settings
from kfm_dagster.views.rejections import IGNORED, IgnoredFilter
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import FakeQueue, announce, good, put, volumes
from kfm_dagster_tests.integration.face import Face
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.one_database

OLD_DAY = date(2014, 7, 30)
"""The first that the contract allows."""
SENSORS = ("nodd_messages", "nodd_ledger", "nodd_ledger", "nodd_due")
"""The ledger's sensor asks for a run of what it has seen on an earlier tick."""


def of_day(day: date, objects: Path, contracts: ContractRegistry, *, announced: datetime | None = None) -> SqsMessage:
    """Store an HRRR object of that day and announce it, by default at its run's time."""
    run = datetime(day.year, day.month, day.day, tzinfo=UTC)
    key, content, index = hrrr.make_hrrr(run=run, lead=1)
    item = good(hrrr.BUCKET, key, content)
    put(objects, [item, good(hrrr.BUCKET, f"{key}.idx", index.encode())])
    return announce([item.event(event_time=announced or run)], registry=contracts)


def served(face: Face) -> tuple[set[str], str]:
    """Tick every sensor and do what they ask for; the partitions of that, and all that they say."""
    ticks = [face.tick(sensor) for sensor in SENSORS]
    requests = [request for tick in ticks for request in tick.run_requests]
    for request in requests:
        face.launch(request)
    return {str(request.partition_key) for request in requests}, "\n".join(tick.skip_message or "" for tick in ticks)


def statuses(face: Face) -> dict[str, Status]:
    return {record.dataset: record.status for record in traces.records(face.pipeline).values()}


def tonight(objects: Path, contracts: ContractRegistry) -> SqsMessage:
    """A neighbour of a day within the window, which must be served all the same."""
    [item] = volumes(1)
    put(objects, [item])
    return announce([item.event()], registry=contracts)


@pytest.mark.clause("DAG-12", "SEC-05", "SEC-13", "OPR-19")
@pytest.mark.parametrize(
    ("day", "announced"),
    [
        (OLD_DAY, date(2025, 4, 2)),
        (date(2024, 12, 31), date(2025, 4, 2)),
        (date(2098, 12, 31), date(2025, 4, 2)),
        # By the sender's own time it would be today.
        (date(2098, 12, 31), date(2098, 12, 31)),
    ],
)
def test_a_real_day_outside_the_window_is_ignored_with_its_reason_and_costs_its_neighbour_nothing(
    face: Face, queue: FakeQueue, objects: Path, contracts: ContractRegistry, day: date, announced: date
) -> None:
    stray = of_day(day, objects, contracts, announced=datetime.combine(announced, time(), UTC))
    queue.waiting += [stray, tonight(objects, contracts)]
    partitions, _ = served(face)
    assert partitions == {"2025-04-02"}
    [ignored] = IGNORED.query(face.pipeline, IgnoredFilter(reason="outside_window"), None, 10).rows
    assert (ignored.message_id, ignored.dataset, ignored.bucket) == (stray.message_id, "hrrr", hrrr.BUCKET)
    assert ignored.key is not None
    assert ignored.key.startswith(f"hrrr.{day:%Y%m%d}/")
    assert statuses(face) == {"nexrad-l2": Status.SUCCEEDED}
    assert face.pipeline.deliveries.states([stray.message_id]) == {stray.message_id: DeliveryState.DELETED}


@pytest.mark.clause("OPR-27", "DAG-12", "SEC-05")
def test_a_day_before_the_dataset_begins_is_rejected(
    face: Face, queue: FakeQueue, objects: Path, contracts: ContractRegistry
) -> None:
    own_tx(face.pipeline.window).lower(OLD_DAY - timedelta(days=9), actor="ada", reason="an earlier day")
    queue.waiting += [of_day(OLD_DAY - timedelta(days=1), objects, contracts), tonight(objects, contracts)]
    assert served(face)[0] == {"2025-04-02"}
    [rejected] = face.pipeline.deliveries.rejected(limit=10)
    assert (rejected.reason_code, str(OLD_DAY) in rejected.detail) == ("invalid_time_range", True)
    assert statuses(face) == {"nexrad-l2": Status.SUCCEEDED}


@pytest.mark.clause("DAG-12", "SEC-05", "BEY-03")
def test_a_day_by_which_the_window_was_lowered_waits_until_the_code_location_is_loaded_again(
    face: Face, queue: FakeQueue, objects: Path, contracts: ContractRegistry
) -> None:
    own_tx(face.pipeline.window).lower(OLD_DAY, actor="ada", reason="an earlier day")
    queue.waiting += [of_day(OLD_DAY, objects, contracts), tonight(objects, contracts)]
    partitions, said = served(face)
    assert partitions == {"2025-04-02"}
    assert "1 units of 2014-07-30 wait: the code location was loaded before" in said
    assert statuses(face) == {"nexrad-l2": Status.SUCCEEDED, "hrrr": Status.PENDING}
    assert IGNORED.query(face.pipeline, IgnoredFilter(), None, 10).rows == []

    reloaded = Face(instance=face.instance, pipeline=face.pipeline)
    served(reloaded)
    served(reloaded)
    assert statuses(face) == {"nexrad-l2": Status.SUCCEEDED, "hrrr": Status.SUCCEEDED}


@pytest.mark.clause("SEC-13", "DAG-04")
def test_units_of_days_to_come_leave_the_intake_open_for_others(
    face: Face, queue: FakeQueue, objects: Path, contracts: ContractRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFM_MAX_IN_FLIGHT_UNITS", "1")
    limited = Face(instance=face.instance, pipeline=open_pipeline(Settings.load(), SqsQueueResource()))
    tomorrow = limited.pipeline.clock().date() + timedelta(days=1)
    queue.waiting += [of_day(tomorrow, objects, contracts)]
    assert limited.tick("nodd_messages").run_requests == []
    assert statuses(limited) == {"hrrr": Status.PENDING}

    queue.waiting += [tonight(objects, contracts)]
    [request] = limited.tick("nodd_messages").run_requests
    assert request.partition_key == "2025-04-02"
    assert limited.tick("nodd_messages").skip_message.startswith("1 live units are in flight")
    limited.pipeline.ledger.switches.engage("hrrr", Decision(actor="ada", reason="a flood", change_ref="CHG-1"))
    assert limited.tick("nodd_messages").skip_message.startswith("1 live units are in flight")
    limited.pipeline.close()
