"""The state of its units decides whether a message is deleted or hidden; forged messages have no effect."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import math
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.sns_signing import AUTHORITY_PATH, CERTIFICATE_PATH, SnsSigner
from kfm_dagster.errors import DatabaseUnavailableError, QueueUnavailableError
from kfm_dagster.ingest.intake import take_in
from kfm_dagster.ingest.node import Heartbeat
from kfm_dagster.ingest.nodes import IntegrityCheck, MessageParse
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.process_state import ProcessState
from kfm_dagster.ledger.deliveries import DeliveryState
from kfm_dagster.ledger.leases import Leases
from kfm_dagster.ledger.policy import backoff_seconds
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.notifications.authenticity import Certificates, CertificateUnavailableError, Signatures
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.views.feeds import IGNORED, IgnoredFilter
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import (
    PARTITION,
    Clock,
    CrashError,
    Failpoint,
    FakeQueue,
    announce,
    assert_conserved,
    deliver_each,
    good,
    missing,
    put,
    raw_message,
    run_pending,
    take,
    volumes,
    work_until_done,
)
from kfm_dagster_tests.transactions import own_tx

VISIBILITY_SECONDS = 900
MALFORMED = '{"Type": "Notification", "Message": '
TEST_EVENT = json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "noaa-goes19"})


@pytest.fixture
def deliver(contracts: ContractRegistry) -> Callable[..., SqsMessage]:
    """Return a message that announces volumes; the same volumes give the same message."""

    def message(*numbers: int, delivery: int = 1) -> SqsMessage:
        items = volumes(max(numbers) + 1)
        return announce([items[number].event() for number in numbers], registry=contracts, delivery=delivery)

    return message


@pytest.mark.clause("BEY-08", "DAG-03", "WSM-10")
def test_a_message_of_several_records_is_deleted_when_its_last_unit_is_terminal(
    pipeline: Pipeline, queue: FakeQueue, objects: Path, deliver: Callable[..., SqsMessage]
) -> None:
    put(objects, [*volumes(2), missing(volumes(3)[2])])
    message = deliver(0, 1, 2)
    report = take(pipeline, message)
    assert (report.received, report.created) == (1, 3)
    backoffs = []
    for attempt in (1, 2, 3):
        assert queue.deleted == []
        run_pending(pipeline, f"run-{attempt}")
        # Only the retries' waits: a working run hides its messages for the queue's full timeout.
        backoffs.append([change for change in queue.visibility if change[1] < VISIBILITY_SECONDS])
        if attempt == 1:
            assert traces.statuses(pipeline) == {Status.SUCCEEDED: 2, Status.FAILED: 1}
        pipeline.clock.forward(3600)
        own_tx(pipeline.ledger).retry_due(now=pipeline.clock(), limit=100)
        assert_conserved(pipeline)
    # Of the contract's three attempts, the first two are followed by the policy's waits, which begin at 60 seconds.
    [given_up] = own_tx(pipeline.ledger).find(status=Status.QUARANTINED)
    retry = pipeline.registry[given_up.dataset].retry
    waits = [
        backoff_seconds(retry.backoff, key=given_up.wal_id, attempt=attempt, base_seconds=60) for attempt in (1, 2)
    ]
    first, second = ((message.receipt_handle, math.ceil(seconds)) for seconds in waits)
    assert backoffs == [[first], [first, second], [first, second]]
    assert traces.statuses(pipeline) == {Status.SUCCEEDED: 2, Status.QUARANTINED: 1}
    assert queue.deleted == [message.receipt_handle]
    assert pipeline.deliveries.counts()[DeliveryState.DELETED] == 1


@pytest.mark.clause("WSM-10")
def test_a_failed_unit_is_retried_when_its_message_is_redelivered(
    pipeline: Pipeline, queue: FakeQueue, objects: Path, deliver: Callable[..., SqsMessage]
) -> None:
    take(pipeline, deliver(0))
    run_pending(pipeline, "run-1")
    put(objects, volumes(1))  # the object arrives after its notification
    report = take(pipeline, deliver(0, delivery=2))
    assert (report.requeued, report.work) == (1, {("nexrad-l2", PARTITION)})
    run_pending(pipeline, "run-2")

    [record] = traces.records(pipeline).values()
    history = [entry.to_status for entry in own_tx(pipeline.ledger).history(record.wal_id)]
    assert history == [
        Status.PENDING, Status.IN_PROGRESS, Status.FAILED, Status.PENDING, Status.IN_PROGRESS, Status.SUCCEEDED,
    ]  # fmt: skip
    assert (record.attempts, record.replay_reason) == (2, "retry")
    assert queue.deleted == [deliver(0, delivery=2).receipt_handle]


@pytest.mark.clause("OPR-19")
def test_every_delivery_has_a_unit_a_rejection_or_an_ignored_record(
    pipeline: Pipeline, contracts: ContractRegistry, deliver: Callable[..., SqsMessage]
) -> None:
    key = "hrrr.20250402/conus/hrrr.t06z.wrfsfcf01.grib2.idx"
    index = good("noaa-hrrr-bdp-pds", key, b"1:0:d=2025040206:")
    sidecar = announce([index.event()], registry=contracts)
    take(pipeline, raw_message(TEST_EVENT, name="test"), sidecar, deliver(0), raw_message(MALFORMED, name="poison"))
    with pipeline.database.snapshot() as view:
        traceless = view.connection.exec_driver_sql(
            """
            SELECT message_id FROM nodd_wal_deliveries EXCEPT SELECT message_id FROM nodd_wal_delivery_units
            EXCEPT SELECT message_id FROM rejected_messages EXCEPT SELECT message_id FROM ignored_records
            """
        ).all()
    assert traceless == []
    rows = IGNORED.query(pipeline, IgnoredFilter(), None, 10).rows
    assert {(row.message_id, row.reason, row.dataset, row.bucket, row.key) for row in rows} == {
        (raw_message(TEST_EVENT, name="test").message_id, "test_event", None, "noaa-goes19", None),
        (sidecar.message_id, "sidecar", "hrrr", "noaa-hrrr-bdp-pds", key),
    }


LEASE = 960
TIMEOUT = 900
"""Visibility timeout of the built-in contracts."""
CLAIMED = Failpoint(operator=MessageParse.operator, point="committed")


@pytest.fixture
def claimed(pipeline: Pipeline) -> Clock:
    """Claim two units of two messages for `run-1`; return the pipeline's clock."""
    deliver_each(pipeline, *volumes(2))
    with pytest.raises(CrashError):
        run_pending(pipeline, "run-1", dies_at=CLAIMED)
    assert traces.statuses(pipeline) == {Status.IN_PROGRESS: 2}
    return pipeline.clock


def keeper_of(pipeline: Pipeline, *, run_id: str = "run-1") -> Heartbeat:
    """Return a heartbeat of the claimed units for a run."""
    attempts = {record.wal_id: record.attempts for record in own_tx(pipeline.ledger).find(limit=9)}
    return Heartbeat(pipeline, run_id=run_id, attempts=attempts)


@pytest.mark.clause("BEY-02")
def test_a_run_longer_than_several_leases_keeps_its_claims_and_hidden_messages(
    pipeline: Pipeline, queue: FakeQueue, claimed: Clock
) -> None:
    lifecycle = keeper_of(pipeline)
    assert lifecycle.interval_seconds == TIMEOUT / 3
    hidden_until = claimed.now.timestamp() + TIMEOUT
    for _ in range(20):
        claimed.forward(lifecycle.interval_seconds)
        assert claimed.now.timestamp() < hidden_until
        queue.visibility.clear()
        lifecycle.tick()
        assert own_tx(pipeline.ledger).release_lost().requeued == ()
        if queue.visibility:
            assert len(queue.visibility) == 2
            assert {seconds for _, seconds in queue.visibility} == {TIMEOUT}
            hidden_until = claimed.now.timestamp() + TIMEOUT
    assert traces.statuses(pipeline) == {Status.IN_PROGRESS: 2}

    claimed.forward(LEASE + 1)  # the run has stopped
    assert len(own_tx(pipeline.ledger).release_lost().requeued) == 2


@pytest.mark.clause("BEY-02")
def test_messages_are_not_hidden_again_before_half_of_the_visibility_timeout(
    pipeline: Pipeline, queue: FakeQueue, claimed: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The run's two messages then need two requests, each for one message.
    monkeypatch.setattr("kfm_dagster.ingest.node.BATCH", 1)
    lifecycle = keeper_of(pipeline)
    claimed.forward(TIMEOUT / 2 - 1)
    lifecycle.tick()
    assert queue.visibility == []
    claimed.forward(1)
    keeper_of(pipeline, run_id="another run").tick()
    assert queue.visibility == []
    lifecycle.tick()
    assert len({receipt for receipt, _ in queue.visibility}) == len(queue.visibility) == 2


@pytest.mark.clause("BEY-02")
def test_every_node_renews_the_lease_at_its_start(pipeline: Pipeline, claimed: Clock) -> None:
    """A series of short nodes keeps the claims of its batch as one long node does."""
    expires: list[float] = []

    def seen(_: object) -> None:
        expires.extend(
            lease.expires_at.timestamp() - claimed.now.timestamp() for lease in own_tx(pipeline.ledger.leases).all()
        )
        claimed.forward(LEASE - 1)

    run_pending(pipeline, "run-1", seen=seen)
    # The first node was skipped; each other node renews the lease to its full length.
    assert expires[1:] == [float(LEASE)] * 5
    assert traces.statuses(pipeline) == {Status.SUCCEEDED: 2}


@pytest.mark.clause("BEY-02")
def test_a_thread_renews_the_lease_during_the_work_and_ends_when_the_work_ends(
    pipeline: Pipeline, claimed: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed = threading.Semaphore(0)
    threads: set[str] = set()

    def renew(self: Leases, run_id: str, *_: Any) -> int:
        threads.add(threading.current_thread().name)
        renewed.release()
        return 1

    monkeypatch.setattr(Leases, "renew", renew)
    monkeypatch.setattr(Heartbeat, "interval_seconds", 0.001)
    lifecycle = keeper_of(pipeline)
    with lifecycle.keeping():
        for _ in range(3):
            assert renewed.acquire(timeout=60)
    with pytest.raises(CrashError), lifecycle.keeping():
        raise CrashError
    assert "heartbeat-run-1" in threads
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("heartbeat")] == []


@pytest.mark.clause("BEY-02")
def test_work_continues_if_renewals_fail(
    pipeline: Pipeline, claimed: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    claimed.forward(TIMEOUT / 2)
    monkeypatch.setattr(Leases, "renew", Mock(side_effect=DatabaseUnavailableError))
    monkeypatch.setattr(FakeQueue, "change_visibility", Mock(side_effect=QueueUnavailableError))
    node = IntegrityCheck(pipeline=pipeline, dataset="nexrad-l2", partition=PARTITION, run_id="run-1")
    with caplog.at_level(logging.WARNING), node.working():
        pass
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "run run-1 could not renew its leases",
        "run run-1 could not renew its messages",
    ]


BASE = "http://127.0.0.1:4566"
CLAUSE = pytest.mark.clause("SEC-04")


class Sns:
    """A topic that signs its messages, with a certificate server that can be down."""

    def __init__(self, folder: Path) -> None:
        self._signer = SnsSigner()
        self.authority = folder / "authority.pem"
        self.authority.write_bytes(self._signer.files[AUTHORITY_PATH])
        self.down = False
        self.fetches = 0

    def signed(self, message: SqsMessage) -> SqsMessage:
        body = json.loads(message.body) | {
            "Timestamp": datetime.now(UTC).isoformat()
        }  # within the certificate's validity

        return dataclasses.replace(message, body=json.dumps(self._signer.signed(body, base_url=BASE)))

    def fetch(self, url: str, seconds: float) -> bytes:
        self.fetches += 1
        if self.down or url != BASE + CERTIFICATE_PATH:
            raise CertificateUnavailableError(f"{url} does not answer")
        return self._signer.files[CERTIFICATE_PATH]


@pytest.fixture
def sns(tmp_path: Path) -> Sns:
    return Sns(tmp_path)


@pytest.fixture
def verifying(
    sns: Sns, make_pipeline: Callable[..., Pipeline], database_url: str, queue: FakeQueue, tmp_path: Path
) -> Pipeline:
    """A pipeline that requires signatures, once on SQLite and once on PostgreSQL."""
    pipeline = make_pipeline(
        url=database_url,
        queue=queue,
        sns_verify="require",
        sns_trusted_url=BASE,
        sns_trusted_ca=sns.authority,
    )
    certificates = Certificates(tmp_path / "certificates", fetch=sns.fetch)
    pipeline.signatures = Signatures(pipeline.settings, certificates=certificates)
    return pipeline


def of(number: int, contracts: ContractRegistry, *, day: int = 3, content: bytes | None = None) -> SqsMessage:
    """Return a volume's announcement with an event time in April 2025, from which its sequencer is made."""
    item = volumes(number + 1)[number]
    chosen = item if content is None else good(item.bucket, item.key, content)
    event = chosen.event(event_time=datetime(2025, 4, day, tzinfo=UTC))
    return announce([event], registry=contracts, name=f"{number}-{day}")


@CLAUSE
def test_a_forged_record_with_a_higher_sequencer_does_not_displace_the_real_later_version(
    verifying: Pipeline, sns: Sns, contracts: ContractRegistry, objects: Path
) -> None:
    [item] = volumes(1)
    later = item.stored[:9] + b"002" + item.stored[12:]  # the volume's number
    put(objects, [item])
    take(verifying, sns.signed(of(0, contracts, day=3)))
    work_until_done(verifying)

    # The forged record has the latest event time: if it were accepted, the real later version would be stale.
    forged = of(0, contracts, day=30, content=b"forged")
    borrowed = json.loads(sns.signed(of(0, contracts, day=3)).body) | {"Message": json.loads(forged.body)["Message"]}
    lent = dataclasses.replace(forged, message_id="lent", body=json.dumps(borrowed))
    reports = [take(verifying, forged), take(verifying, lent)]
    assert [(report.created, report.rejected) for report in reports] == [(0, 1), (0, 1)]
    work_until_done(verifying)

    put(objects, [good(item.bucket, item.key, later)])
    report = take(verifying, sns.signed(of(0, contracts, day=4, content=later)))
    assert (report.created, report.rejected) == (1, 0)
    work_until_done(verifying)
    etags = [hashlib.md5(content).hexdigest() for content in (item.stored, later)]
    by_version = {record.object_version: record.status for record in own_tx(verifying.ledger).find(limit=10)}
    assert by_version == dict.fromkeys(etags, Status.SUCCEEDED)
    [published] = traces.catalog_items(verifying).values()
    assert etags[1] in json.dumps(published), "the later version has the Item"
    assert {entry.reason_code for entry in verifying.deliveries.rejected()} == {"signature_invalid"}


@CLAUSE
def test_messages_wait_until_the_certificate_is_available_and_then_all_become_units(
    verifying: Pipeline, sns: Sns, contracts: ContractRegistry, objects: Path, queue: FakeQueue
) -> None:
    put(objects, volumes(4))
    messages = [sns.signed(of(number, contracts)) for number in range(4)]
    sns.down = True
    for delivery in (1, 2, 3):
        redelivered = [
            dataclasses.replace(message, receive_count=delivery, receipt_handle=f"{message.message_id}#{delivery}")
            for message in messages
        ]
        queue.waiting = list(redelivered)
        report = take_in(verifying, ProcessState())
        assert (report.received, report.unverified, report.rejected, report.work) == (0, 4, 0, frozenset())
        # Each wait is longer, so that the redrive policy does not move the messages while no certificate is available.
        assert queue.visibility[-4:] == [(message.receipt_handle, 60 * 4 ** (delivery - 1)) for message in redelivered]
    assert sum(verifying.deliveries.counts().values()) == 0
    assert sns.fetches == 3, "one request for all messages of a batch"
    sns.down = False
    queue.waiting = [*messages]
    report = take_in(verifying, ProcessState())
    assert (report.received, report.created, report.unverified) == (4, 4, 0)
    work_until_done(verifying)
    assert traces.statuses(verifying) == {Status.SUCCEEDED: 4}
    assert verifying.deliveries.counts()[DeliveryState.REJECTED] == 0
    assert_conserved(verifying)


@CLAUSE
def test_runs_and_redeliveries_do_not_verify_a_signature_again(
    verifying: Pipeline, sns: Sns, contracts: ContractRegistry, objects: Path, tmp_path: Path
) -> None:
    put(objects, volumes(2))
    genuine, forged = sns.signed(of(0, contracts)), of(1, contracts)
    take(verifying, genuine, forged)
    with verifying.database.snapshot() as view:
        rows = view.connection.exec_driver_sql("SELECT message_id, signature FROM nodd_wal_deliveries").all()
    assert {tuple(row) for row in rows} == {(genuine.message_id, "verified"), (forged.message_id, "invalid")}
    sns.down = True
    fetches = sns.fetches
    verifying.signatures = Signatures(verifying.settings, certificates=Certificates(tmp_path / "none", fetch=sns.fetch))
    run_pending(verifying, "run-1")
    assert traces.statuses(verifying) == {Status.SUCCEEDED: 1}
    assert take(verifying, dataclasses.replace(genuine, receipt_handle="again")).unverified == 0
    assert sns.fetches == fetches
