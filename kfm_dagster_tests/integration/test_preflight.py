"""No message is received or deleted while a store or queue is missing, refuses access, or is foreign."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kfm_dagster.contracts.issues import IntegrityIssue
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.defs.resources import SqsQueueResource
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.demo.samples.goes_abi import goes_abi_samples
from kfm_dagster.errors import ExitCode, PreflightError
from kfm_dagster.ingest.preflight import preflight
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.notifications.landing import Landing
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.notifications.sqs import connect
from kfm_dagster.settings import Settings
from kfm_dagster.stages.card import ErrorClass
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.object_handle import ObjectReadError
from kfm_dagster.storage.objects import ObjectStores, open_store
from kfm_dagster_tests.commands import Call
from kfm_dagster_tests.databases import BOTH_DATABASES
from kfm_dagster_tests.followers.announcements.web_server import WebAnswer, WebRequest, open_web_server
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import DAY, FakeQueue, enqueue, good, put, volumes
from kfm_dagster_tests.integration.face import Face
from kfm_dagster_tests.transactions import own_tx

URLS = ("KFM_STORAGE_URL", "KFM_CATALOG_URL", "KFM_LINEAGE_URL")
REFUSES = "the store refuses access"


@pytest.fixture
def bucket(cloud: EmbeddedCloud, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The name of a bucket that does not exist."""
    for name, value in cloud.environment().items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    return f"kfm-{abs(hash(request.node.nodeid))}"


@pytest.mark.clause("DAG-13")
@pytest.mark.parametrize("variable", URLS)
def test_messages_are_received_only_once_the_missing_bucket_exists(
    variable: str,
    face: Face,
    queue: FakeQueue,
    cloud: EmbeddedCloud,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(variable, f"s3://{bucket}/prefix")
    enqueue(face.pipeline, queue, *volumes(2))
    deployment = face.reopened()
    for sensor in ("nodd_messages", "nodd_ledger"):
        skip_message = deployment.tick(sensor).skip_message
        assert "nothing is received" in skip_message
        assert (
            f"s3://{bucket}/prefix cannot be used; observed there is no such bucket; next: correct {variable}"
            in skip_message
        )
        assert "\n" not in skip_message
    assert queue.receives == 0

    cloud.client("s3").create_bucket(Bucket=bucket)
    [run_request] = deployment.tick("nodd_messages").run_requests
    assert deployment.launch(run_request) is not None
    assert traces.statuses(deployment.pipeline) == {Status.SUCCEEDED: 2}
    deployment.pipeline.close()


@pytest.mark.clause("DAG-13")
def test_if_the_storage_bucket_vanishes_the_received_messages_become_visible_and_no_more_are_received(
    face: Face,
    queue: FakeQueue,
    cloud: EmbeddedCloud,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KFM_STORAGE_URL", f"s3://{bucket}")
    s3 = cloud.client("s3")
    s3.create_bucket(Bucket=bucket)
    deployment = face.reopened()
    assert "the queue is empty" in deployment.tick("nodd_messages").skip_message
    for entry in s3.list_objects_v2(Bucket=bucket)["Contents"]:
        s3.delete_object(Bucket=bucket, Key=entry["Key"])
    s3.delete_bucket(Bucket=bucket)

    receipts = {message.receipt_handle for message in enqueue(face.pipeline, queue, *volumes(2))}
    received = queue.receives
    assert "the landing zone cannot be used" in deployment.tick("nodd_messages").skip_message
    assert set(queue.visibility) == {(receipt, 0) for receipt in receipts}
    assert "there is no such bucket" in deployment.tick("nodd_messages").skip_message
    assert queue.receives == received + 1
    assert traces.statuses(deployment.pipeline) == {}
    deployment.pipeline.close()


@pytest.mark.clause("DAG-13")
def test_a_tick_reports_a_missing_queue_or_database_in_one_line(
    face: Face, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqsQueueResource, "connect", lambda self, settings, dates=None: connect(settings))
    monkeypatch.setenv("KFM_SQS_PRIMARY_QUEUE", "gone")
    deployment = face.reopened()
    assert (
        "there is no such queue; observed gone; next: create the queue" in deployment.tick("nodd_messages").skip_message
    )
    deployment.pipeline.close()
    monkeypatch.setenv("KFM_WAL_DSN", "postgresql+psycopg2://kfm@127.0.0.1:1/kfm")
    for sensor in ("nodd_messages", "nodd_ledger", "nodd_due"):
        assert "the database does not answer; observed postgresql" in face.tick(sensor).skip_message


@pytest.mark.clause("DAG-13")
@pytest.mark.parametrize("only", [(), ("PUT",), ("HEAD",)], ids=["everything", "writing", "reading"])
def test_a_store_that_refuses_access_is_named_with_its_setting(
    only: tuple[str, ...], tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(request: WebRequest) -> WebAnswer:
        status = 403 if not only or request.command in only else 200
        return WebAnswer(status=status, headers={"ETag": '"0"', "Last-Modified": "Wed, 02 Apr 2025 00:00:00 GMT"})

    with open_web_server() as server:
        server.answers = answer
        for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
            monkeypatch.setenv(name, server.url(""))
        with pytest.raises(PreflightError) as refused:
            preflight(Settings(home=tmp_path, catalog_url="s3://my-catalog"))
    assert f"catalog s3://my-catalog cannot be used; observed {REFUSES}; next: correct KFM_CATALOG_URL" in str(
        refused.value
    )


def test_the_check_writes_no_file_and_names_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home")
    preflight(settings)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    (tmp_path / "file").write_text("")
    with pytest.raises(PreflightError, match=r"lineage .*file/x cannot be used; .*KFM_LINEAGE_URL"):
        preflight(settings.model_copy(update={"lineage_url": str(tmp_path / "file" / "x")}))


@pytest.mark.clause("DAG-13")
@pytest.mark.parametrize("answer", [IntegrityIssue.MISSING_OBJECT, IntegrityIssue.ACCESS_DENIED])
def test_a_bucket_that_cannot_be_listed_does_not_affect_objects_of_other_buckets(
    answer: IntegrityIssue, face: Face, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(objects, [good(*sample) for satellite in (16, 19) for sample in goes_abi_samples(DAY, 3, satellite=satellite)])
    listed = ObjectStores._listed
    contract = face.pipeline.registry.contracts["goes-abi"]
    first = contract.storage.buckets[0]
    objects_before = len(list(face.pipeline.objects.list_day(contract, DAY)))

    def without_first(self: ObjectStores, of: DatasetContract, bucket: str, prefix: str) -> Iterator:
        if bucket == first:
            raise ObjectReadError(answer, f"s3://{bucket}/{prefix}", "it is not there")
        return listed(self, of, bucket, prefix)

    monkeypatch.setattr(ObjectStores, "_listed", without_first)
    result = face.ingest("goes-abi", partition=DAY.isoformat(), raise_on_error=False)
    assert not result.success
    unit_records = traces.records(face.pipeline).values()
    assert (len(unit_records), objects_before) == (3, 6)
    assert {str(record.object_uri).startswith(f"s3://{first}/") for record in unit_records} == {False}
    [stage] = own_tx(face.pipeline.stages.lifecycle.store).of_run(result.run_id)
    assert stage.error_class is ErrorClass.E_INPUT


BUCKET = "kfm-shared"
REFUSED = "is another deployment's"


@pytest.fixture(params=["folder", "bucket"])
def shared(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The folder or bucket of a catalog and a store that two otherwise separate deployments share."""
    place = str(tmp_path / "shared")
    if request.param == "bucket":
        aws: EmbeddedCloud = request.getfixturevalue("aws")
        aws.client("s3").create_bucket(Bucket=BUCKET)
        place = f"s3://{BUCKET}/{request.node.callspec.params['database_url']}"
    monkeypatch.setenv("KFM_CATALOG_URL", f"{place}/catalog")
    return place


def _files(place: str) -> dict[str, bytes]:
    store = open_store(place)
    paths = [entry["path"] for page in store.list() for entry in page]
    return {path: bytes(store.get(path).bytes()) for path in paths}


@pytest.mark.clause("SEC-11")
@BOTH_DATABASES
def test_a_second_ledger_changes_nothing_in_the_catalog_and_the_store_of_the_first_ledger(
    shared: str,
    face: Face,
    queue: FakeQueue,
    call: Call,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enqueue(face.pipeline, queue, *volumes(2))
    [run_request] = face.tick("nodd_messages").run_requests
    face.launch(run_request)
    assert traces.statuses(face.pipeline) == {"succeeded": 2}
    # The mark of the first deployment does not count as a document of its catalog. A process reads the mark once.
    day = DAY.isoformat()
    assert call("reconcile", "--dataset", "nexrad-l2", "--from", day, "--to", day, "--read").code == ExitCode.DONE
    if "://" not in shared:
        assert len(traces.items(Path(shared) / "catalog")) == 2
        assert traces.catalog_tree(Path(shared) / "catalog")
    with monkeypatch.context() as patched:
        patched.setattr("kfm_dagster.ingest.preflight.hold", lambda *_: pytest.fail("the mark was read again"))
        assert face.ingest(partition=day).success
    is_sqlite = face.pipeline.database.dialect == "sqlite"
    url = f"sqlite:///{tmp_path / 'second.db'}" if is_sqlite else request.getfixturevalue("empty_postgres_url")
    Database.open(url).dispose()
    monkeypatch.setenv("KFM_WAL_DSN", url)
    monkeypatch.setenv("KFM_HOME", str(tmp_path / "second"))
    second = face.reopened()
    before = _files(f"{shared}/catalog")
    enqueue(second.pipeline, queue, *volumes(3))
    received = queue.receives
    for sensor in ("nodd_messages", "nodd_ledger"):
        skip_message = second.tick(sensor).skip_message
        assert REFUSED in skip_message
        assert "\n" not in skip_message
    assert queue.receives == received
    assert not second.ingest(partition=DAY.isoformat(), raise_on_error=False).success
    evidence = second.repository.get_job("nodd_evidence")
    assert not evidence.execute_in_process(instance=second.instance, raise_on_error=False).success
    assert traces.statuses(second.pipeline) == {}
    monkeypatch.setenv("KFM_GEOPARQUET", "true")
    for command in (
        ("reconcile", "--days", "1"),
        ("reconcile", "--days", "1", "--repair", "--reason", "x"),
        ("stac", "rebuild", "--place", "geoparquet"),
    ):
        call(*command).refused(REFUSED, code=ExitCode.REFUSED)
    assert _files(f"{shared}/catalog") == before
    # The second deployment wrote no document into its own folders, either.
    assert not any(Path(os.environ["KFM_HOME"]).rglob("*.json*"))
    monkeypatch.setenv("KFM_STORAGE_URL", face.pipeline.settings.storage)
    for command in ("plan", "run"):
        call("retention", command).refused(REFUSED, code=ExitCode.REFUSED)
    second.pipeline.close()


@pytest.mark.clause("SEC-11")
def test_retention_refuses_a_store_without_a_mark(
    face: Face, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFM_STORAGE_URL", str(tmp_path / "older"))
    Landing(open_store(str(tmp_path / "older"))).land([SqsMessage(message_id="m", body="{}")])
    call("retention", "plan").refused("kfm init --adopt", code=ExitCode.REFUSED)
