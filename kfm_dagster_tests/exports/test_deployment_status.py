"""A deployment's status lists each item that needs attention while its condition lasts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from kfm_dagster.alerts.plan import ALERTS, AlertPlan
from kfm_dagster.alerts.store import AlertStore
from kfm_dagster.configs import own_folder
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import ExitCode
from kfm_dagster.exports.deployment_status import LATE, REJECTED_SINCE, Matter, deployment_status
from kfm_dagster.exports.metrics import exposition
from kfm_dagster.governance.log import GovernanceAction
from kfm_dagster.governance.review import Command
from kfm_dagster.governance.switches import EVERY_DATASET
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.cases import QuarantineCases
from kfm_dagster.ledger.deliveries import Delivery
from kfm_dagster.ledger.gaps import FeedWindow
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.rejections import Rejection
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.lineage.batches import LineageFiles
from kfm_dagster.lineage.store import Lineage
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.fence import open_fence
from kfm_dagster_tests.alerts.recorded import Mailbox, Record, evaluator_of
from kfm_dagster_tests.catalog.envelopes import candidates, goes
from kfm_dagster_tests.catalog.test_following import Mirror, fail
from kfm_dagster_tests.commands import Call
from kfm_dagster_tests.factories import PERSON, envelope, failed
from kfm_dagster_tests.ledger.bench import DAY, JANE, Clock
from kfm_dagster_tests.lineage.units import ingest_run, units
from kfm_dagster_tests.transactions import own_tx

SECOND = timedelta(seconds=1)
RADAR = "nexrad-l2"


@dataclass(frozen=True)
class Planted:
    """A deployment and its clock."""

    pipeline: Pipeline
    clock: Clock

    def matters(self) -> Sequence[Matter]:
        return deployment_status(self.pipeline).matters

    def unit(self, number: int = 0) -> str:
        unit = envelope(number)
        own_tx(self.pipeline.ledger).ensure([unit])
        return unit.wal_id

    def claim(self) -> Any:
        return own_tx(self.pipeline.ledger).claim(dataset=RADAR, partition=DAY, run_id="run", limit=1)


@pytest.fixture
def planted(database: Database, contracts: ContractRegistry, tmp_path: Path) -> Planted:
    clock = Clock()
    settings = Settings(home=tmp_path, geoparquet=False)
    return Planted(Pipeline(settings=settings, registry=contracts, database=database, clock=clock), clock)


def quarantined(planted: Planted) -> None:
    own_tx(planted.pipeline.ledger).quarantine([planted.unit()], reason_code="moved_radar", decision=PERSON)


def retried(planted: Planted) -> None:
    planted.unit()
    [unit] = planted.claim()
    own_tx(planted.pipeline.ledger).settle([failed(unit, "object_unavailable")], run_id="run")


def switched_off(planted: Planted) -> None:
    planted.pipeline.ledger.switches.engage(RADAR, PERSON)


def proposed(planted: Planted) -> None:
    own_tx(planted.pipeline.ledger.review).propose(
        Command.RELEASE, JANE, {GovernanceAction.RELEASE: {planted.unit(): 1}}
    )


def fired(planted: Planted) -> None:
    Record(planted.pipeline.database, at=planted.clock()).gate("G7")
    plan = AlertPlan.parse((own_folder() / ALERTS).read_text(encoding="utf-8"))
    evaluator_of(planted.pipeline.database, plan, planted.clock, Mailbox()).evaluate()


def acknowledged(planted: Planted) -> None:
    fired(planted)
    AlertStore(planted.pipeline.database, clock=planted.clock).acknowledge(1, PERSON)


def silent(planted: Planted, product: str = "volumes") -> None:
    now = planted.clock()
    pace = {"silent_since": now - timedelta(minutes=20), "since": now - timedelta(minutes=40)}
    window = FeedWindow(dataset=RADAR, product=product, groups={}, expected=8, least=4, **pace)
    planted.pipeline.gaps.look_at([window], at=now)


def deferred(planted: Planted) -> None:
    pipeline = planted.pipeline
    pipeline.catalog.register(candidates(pipeline.registry, [goes(0)]), fence=open_fence)
    mirror = Mirror()
    mirror.name, mirror.first = "geoparquet", fail
    pipeline.following.catch_up([mirror])


def rejected(planted: Planted) -> None:
    deliveries = planted.pipeline.deliveries
    own_tx(deliveries).record([Delivery(message_id="m", queue="q", receipt_handle="r", landing_sha256="a" * 64)])
    own_tx(deliveries).reject(
        [Rejection(message_id="m", record_index=0, reason_code="malformed_json", detail="no JSON")]
    )


def lineage_recorded(planted: Planted) -> Lineage:
    pipeline = planted.pipeline
    root = LineageFiles.open(str(pipeline.settings.home / "lineage"))
    refusing = Mock(**{"send.return_value": "http transport: HTTPError: 422 Client Error"})
    lineage = Lineage(pipeline.database, root, backend=refusing, clock=planted.clock)
    lineage.emit(units(0, 2), run=ingest_run(), contract=pipeline.registry["goes-abi"], fence=open_fence)
    return lineage


def lineage_refused(planted: Planted) -> None:
    lineage_recorded(planted).flush()


ROWS: dict[str, tuple[Callable[[Planted], None], str, str, str, str | None]] = {
    # condition: function that creates it, urgency, text, next step, the console's page
    "a quarantined unit": (
        quarantined, "now", "1 unit of nexrad-l2 quarantined: moved_radar", "kfm units cases --dataset nexrad-l2",
        "/units?dataset=nexrad-l2&status=quarantined&code=moved_radar",
    ),
    "a unit that is retried": (
        retried, "know", "1 unit of nexrad-l2 failed: object_unavailable; none without another attempt",
        "kfm units list --dataset nexrad-l2 --status failed --error-code object_unavailable",
        "/units?dataset=nexrad-l2&status=failed&code=object_unavailable",
    ),
    "a switch": (
        switched_off, "know", "nexrad-l2 switched off by person: looked at it", "kfm resume nexrad-l2",
        "/datasets/nexrad-l2",
    ),
    "an override that one person proposed": (
        proposed, "now", "release of 1 unit, proposed by jane, waits for a second person", "kfm governance approve 1",
        "/decisions",
    ),
    "an alert": (
        fired, "now", "alert covariance (warning) of nexrad-l2.metadata_extract G7", "kfm alerts ack 1",
        "/alerts?rule=covariance",
    ),
    "an alert that a person has acknowledged": (
        acknowledged, "know", "alert covariance (warning) of nexrad-l2.metadata_extract G7, acknowledged by person",
        "kfm alerts list", "/alerts?rule=covariance",
    ),
    "a silent product": (
        silent, "now", "1 silent product of nexrad-l2", "kfm gaps --dataset nexrad-l2", "/gaps?dataset=nexrad-l2"
    ),
    "a follower that is deferred": (
        deferred, "now", "geoparquet lacks 1 change of goes-abi: ", "kfm stac rebuild --place geoparquet", None
    ),
    "a lineage backend that refuses": (
        lineage_refused, "know", "the lineage backend lacks 1 file: http transport: HTTPError: 422",
        "correct OPENLINEAGE_URL, or repair the lineage backend (docs/lineage.md)", None,
    ),
    "a message that was rejected": (
        rejected, "know", "1 message rejected within a day: malformed_json",
        "kfm units rejected --reason malformed_json", "/rejected?reason=malformed_json",
    ),
}  # fmt: skip
UNDATED = {"a follower that is deferred", "a message that was rejected"}


@pytest.mark.parametrize("row", ROWS)
def test_each_condition_is_listed_with_its_urgency_and_next_step(row: str, planted: Planted) -> None:
    plant, urgency, text, next_step, path = ROWS[row]
    assert deployment_status(planted.pipeline).well
    plant(planted)
    [matter] = planted.matters()
    assert (matter.urgency, matter.next_step, matter.path) == (urgency, next_step, path)
    assert matter.since == (None if row in UNDATED else planted.clock())
    assert matter.what.startswith(text)
    assert deployment_status(planted.pipeline).well is (urgency == "know")


def test_undelivered_lineage_without_a_failure_is_not_listed(planted: Planted) -> None:
    lineage = lineage_recorded(planted)
    planted.clock.advance(2 * LATE.total_seconds())
    assert lineage.undelivered().backend.batches == 1
    assert planted.matters() == []


@pytest.mark.clause("SEC-14", "BEY-07")
def test_lineage_waiting_longer_than_the_limit_needs_attention_and_is_in_the_metrics(planted: Planted) -> None:
    lineage_refused(planted)
    since = planted.clock()
    planted.clock.advance((LATE + SECOND).total_seconds())
    [matter] = planted.matters()
    assert (matter.urgency, matter.since) == ("now", since)
    metrics = exposition(planted.pipeline).decode()
    for destination, batches, seconds in (("backend", 1.0, 901.0), ("files", 0.0, 0.0)):
        labels = f'{{destination="{destination}",env="dev"}}'
        assert f"nodd_sns_lineage_waiting{labels} {batches}" in metrics
        assert f"nodd_sns_lineage_age_seconds{labels} {seconds}" in metrics


@pytest.mark.parametrize(("waited", "late"), [(LATE, False), (LATE + SECOND, True)])
def test_units_pending_longer_than_the_limit_without_a_run_are_late(
    planted: Planted, waited: timedelta, late: bool
) -> None:
    planted.unit(0)
    planted.unit(1)
    planted.clock.advance(waited.total_seconds())
    text = "2 units of nexrad-l2 pending, the oldest for 15 minutes, and no run works on this dataset"
    assert [(matter.what, matter.next_step) for matter in planted.matters()] == ([(text, "kfm doctor")] if late else [])
    # A run of another dataset does not change this.
    other = envelope(2, dataset="goes-abi", object_uri="s3://noaa-goes19/x.nc")
    own_tx(planted.pipeline.ledger).ensure([other])
    own_tx(planted.pipeline.ledger).claim(dataset="goes-abi", partition=DAY, run_id="other", limit=1)
    assert len(planted.matters()) == late
    planted.claim()
    assert planted.matters() == []


def test_pending_units_of_a_dataset_not_in_kfm_datasets_are_listed_without_delay(planted: Planted) -> None:
    planted.unit()
    settings = planted.pipeline.settings
    for followed, nexts in (("goes-abi, hrrr", ["add nexrad-l2 to KFM_DATASETS"]), ("nexrad-l2", []), ("", [])):
        planted.pipeline.settings = settings.model_copy(update={"datasets": followed})
        assert [matter.next_step for matter in planted.matters()] == nexts


def test_units_of_a_switched_off_dataset_are_not_late(planted: Planted) -> None:
    planted.unit()
    planted.clock.advance(2 * LATE.total_seconds())
    for dataset in (RADAR, EVERY_DATASET):
        planted.pipeline.ledger.switches.engage(dataset, PERSON)
        assert [matter.urgency for matter in planted.matters()] == ["know"]
        planted.pipeline.ledger.switches.release(dataset, PERSON)


def test_a_failure_without_another_attempt_needs_attention_now(planted: Planted) -> None:
    retried(planted)
    [group] = own_tx(planted.pipeline.ledger).failing()
    planted.pipeline.ledger.failing = lambda **_: [replace(group, retried=0)]
    [matter] = planted.matters()
    assert (matter.urgency, matter.what.rpartition("; ")[2]) == ("now", "1 without another attempt")


def test_discarded_units_and_old_rejections_are_not_listed(planted: Planted) -> None:
    quarantined(planted)
    cases = own_tx(QuarantineCases(planted.pipeline.database, clock=planted.clock))
    [case] = cases.of(envelope(0).wal_id)
    cases.discard({case.wal_id: case.quarantined_version}, decision=PERSON)
    rejected(planted)
    planted.clock.advance(REJECTED_SINCE.total_seconds())
    assert [matter.urgency for matter in planted.matters()] == ["know"]
    planted.clock.advance(1)
    assert planted.matters() == []


def test_urgent_items_come_before_notices_and_older_items_before_newer_ones(planted: Planted) -> None:
    for plant in (switched_off, quarantined, silent):
        began = planted.clock()
        plant(planted)
        planted.clock.advance(1)
    assert [matter.what.split()[-1] for matter in planted.matters()] == ["moved_radar", RADAR, "it"]
    assert planted.matters()[0].urgency == planted.matters()[1].urgency == "now"
    # Gaps of one kind are one item, dated by the first gap.
    silent(planted, "chunks")
    assert [(matter.what, matter.since) for matter in planted.matters()][1] == ("2 silent products of nexrad-l2", began)


def test_kfm_status_prints_text_and_json(ledger: dict[str, NoddWalRecord], call: Call) -> None:
    shown = call("status")
    assert shown.code == ExitCode.DONE
    assert shown.out.startswith("nothing needs attention\n")
    waiting = str(ledger[Status.PENDING].wal_id)
    assert call("quarantine", "add", waiting, "--reason-code", "moved", "--reason", "moved radar").code == ExitCode.DONE
    shown = call("status")
    assert shown.code == ExitCode.FINISHED_WITH_FAILURES
    assert shown.out.startswith("1 problem needs attention; 1 notice\n")
    assert "kfm units cases --dataset nexrad-l2" in shown.out
    status = json.loads(call("status", "--json").out)
    assert (status["well"], [matter["urgency"] for matter in status["matters"]]) == (False, ["now", "know"])
    counts = {"pending": 0, "in_progress": 0, "succeeded": 1, "failed": 1, "quarantined": 1}
    assert status["units"] == {RADAR: counts}
