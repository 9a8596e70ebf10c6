"""Forged messages, and certificates that come late: nothing forged has any effect, and nothing genuine is lost."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.sns_signing import AUTHORITY_PATH, CERTIFICATE_PATH, SnsSigner
from kfm_dagster.ingest.intake import take_in
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.process_state import ProcessState
from kfm_dagster.ledger.deliveries import DeliveryState
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.notifications.authenticity import Certificates, CertificateUnavailableError, Signatures
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.settings import SnsVerify
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import (
    FakeQueue,
    announce,
    assert_conserved,
    good,
    put,
    run_pending,
    take,
    volumes,
    work_until_done,
)
from kfm_dagster_tests.transactions import own_tx

BASE = "http://127.0.0.1:4566"
CLAUSE = pytest.mark.clause("SEC-04")


class Sns:
    """A topic that signs, and the server of its certificate, which can be down."""

    def __init__(self, folder: Path) -> None:
        self._signer = SnsSigner()
        self.authority = folder / "authority.pem"
        self.authority.write_bytes(self._signer.files[AUTHORITY_PATH])
        self.down = False
        self.fetches = 0

    def signed(self, message: SqsMessage) -> SqsMessage:
        body = json.loads(message.body) | {
            "Timestamp": datetime.now(UTC).isoformat()
        }  # the certificate is of these days

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
        sns_verify=SnsVerify.REQUIRE,
        sns_trusted_url=BASE,
        sns_trusted_ca=sns.authority,
    )
    kept = Certificates(tmp_path / "certificates", fetch=sns.fetch)
    pipeline.signatures = Signatures(pipeline.settings, certificates=kept)
    return pipeline


def of(number: int, contracts: ContractRegistry, *, day: int = 3, content: bytes | None = None) -> SqsMessage:
    """The announcement of a volume on a day of April 2025, from which its sequencer follows."""
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

    # Announced as later than whatever comes, so that whatever comes would be taken for stale.
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
def test_messages_wait_while_the_certificate_cannot_be_fetched_and_all_end_as_units(
    verifying: Pipeline, sns: Sns, contracts: ContractRegistry, objects: Path, queue: FakeQueue
) -> None:
    put(objects, volumes(4))
    messages = [sns.signed(of(number, contracts)) for number in range(4)]
    sns.down = True
    for delivery in (1, 2, 3):
        again = [
            dataclasses.replace(one, receive_count=delivery, receipt_handle=f"{one.message_id}#{delivery}")
            for one in messages
        ]
        queue.waiting = list(again)
        report = take_in(verifying, ProcessState())
        assert (report.received, report.unverified, report.rejected, report.work) == (0, 4, 0, frozenset())
        # Longer each time, so that no redrive policy has them before the certificate is there.
        assert queue.visibility[-4:] == [(one.receipt_handle, 60 * 4 ** (delivery - 1)) for one in again]
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
def test_the_verdict_is_stored_and_neither_the_run_nor_a_message_that_comes_again_asks_for_it(
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
