"""Redirects: a store that sends us elsewhere is refused, and the server named there never hears of us."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.catalog.publisher import PublishError, open_publisher
from kfm_dagster.contracts.issues import IntegrityIssue
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import DependencyUnavailableError, QueueUnavailableError
from kfm_dagster.notifications.landing import Landing
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.notifications.sqs import connect
from kfm_dagster.run_state.object_store import ObjectRunState
from kfm_dagster.settings import Settings
from kfm_dagster.storage.artifacts import ArtifactReference, Artifacts
from kfm_dagster.storage.object_handle import ObjectReadError
from kfm_dagster.storage.objects import ObjectStores, open_store
from kfm_dagster_tests.followers.announcements.web_server import WebAnswer, WebServer, open_web_server

CLAUSE = pytest.mark.clause("SEC-06")
HRRR = ContractRegistry.load()["hrrr"]
URI = f"s3://{HRRR.storage.buckets[0]}/hrrr.20251203/conus/hrrr.t00z.wrfsfcf06.grib2"
TOKEN = "a-session-token-that-is-nobody-elses-business"


@pytest.fixture(params=["127.0.0.1", "127.0.0.2"])
def elsewhere(request: pytest.FixtureRequest) -> Iterator[WebServer]:
    """The server that nobody configured: at another port, or another host."""
    with open_web_server(request.param) as server:
        yield server


@pytest.fixture
def endpoint(elsewhere: WebServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    """The configured endpoint, which redirects to the other one."""
    with open_web_server() as server:
        redirects(server, elsewhere)
        for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_SQS", "HTTP_PROXY", "http_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url(""))
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ASIATESTING")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        yield server


def redirects(endpoint: WebServer, elsewhere: WebServer, *, status: int = 307, **headers: str) -> None:
    endpoint.asked.clear()
    endpoint.answers = lambda request: WebAnswer(
        status=status, headers={"Location": elsewhere.url("") + request.path, **headers}
    )


READS: dict[str, Callable[[ObjectStores], Any]] = {
    "head": lambda stores: stores.open(HRRR, URI).head(),
    "probe": lambda stores: stores.open(HRRR, URI).probe(16),
    "read": lambda stores: stores.open(HRRR, URI, size=100).read(0, 16),
    "sidecar": lambda stores: stores.open_sidecar(HRRR, URI, ".idx"),
    "list": lambda stores: list(stores.list_day(HRRR, date(2025, 12, 3))),
}


@CLAUSE
@pytest.mark.parametrize("read", READS)
def test_a_redirected_read_is_refused_and_goes_nowhere_else(
    endpoint: WebServer, elsewhere: WebServer, read: str
) -> None:
    for status, anonymous in itertools.product((301, 302, 303, 307, 308), (False, True)):
        redirects(endpoint, elsewhere, status=status)
        with pytest.raises(ObjectReadError) as caught:
            READS[read](ObjectStores(anonymous=anonymous))
        assert elsewhere.asked == []
        assert len(endpoint.asked) == 1, "trying again would not help"
        assert (TOKEN in endpoint.asked[0].headers.get("x-amz-security-token", "")) is not anonymous
        line = str(caught.value)
        assert caught.value.code is IntegrityIssue.STORAGE_UNAVAILABLE
        assert endpoint.url("").removeprefix("http://") in line
        assert elsewhere.url("").removeprefix("http://") in line
        assert "redirect" in line
        assert "next: correct AWS_ENDPOINT_URL" in line
        assert TOKEN not in line
        assert "\n" not in line


@CLAUSE
def test_a_bucket_of_another_region_is_named(endpoint: WebServer, elsewhere: WebServer) -> None:
    for region, step in (
        ("eu-west-1", "next: the bucket is in region eu-west-1"),
        ("evil.example/#", "next: correct AWS_ENDPOINT_URL"),
    ):
        redirects(endpoint, elsewhere, status=301, **{"x-amz-bucket-region": region})
        with pytest.raises(ObjectReadError, match=step):
            ObjectStores().open(HRRR, URI).head()
    assert elsewhere.asked == []


@CLAUSE
def test_no_store_of_ours_follows_a_redirect(endpoint: WebServer, elsewhere: WebServer) -> None:
    store = open_store("s3://own/prefix")
    with pytest.raises(DependencyUnavailableError, match="redirect"):
        Landing(store).land([SqsMessage(message_id="m", body="{}")])
    with pytest.raises(DependencyUnavailableError, match="redirect"):
        Landing(store).read(f"sha256:{'0' * 64}")
    with pytest.raises(DependencyUnavailableError, match="redirect"):
        ObjectRunState(store, branch="main").of_run("run-1")
    with pytest.raises(DependencyUnavailableError, match="redirect"):
        Artifacts(lambda: store).put(b"content", suffix="x")
    with pytest.raises(DependencyUnavailableError, match="redirect"):
        Artifacts(lambda: store).get(ArtifactReference(uri="a", sha256="0" * 64))
    publisher = open_publisher("s3://own/catalog")
    for attempt in (lambda: publisher.read(["a"]), lambda: publisher.names("a"), lambda: publisher.remove(["a"])):
        with pytest.raises(PublishError, match="redirect"):
            attempt()
    with publisher.staging({"a": b"{}"}) as staged:
        assert set(staged.promote(["a"])) == {"a"}
    assert len(endpoint.asked) == 9
    assert elsewhere.asked == []


@CLAUSE
def test_the_queues_client_follows_none_either(endpoint: WebServer, elsewhere: WebServer, tmp_path: Path) -> None:
    with pytest.raises(QueueUnavailableError):
        connect(Settings(home=tmp_path)).depth()
    assert endpoint.asked
    assert elsewhere.asked == []


@CLAUSE
def test_nobody_in_the_package_has_another_client_of_s3() -> None:
    root = Path(__file__).resolve().parents[2] / "kfm_dagster"
    clients = [
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if any(sign in path.read_text(encoding="utf-8") for sign in ("S3Store", 'client("s3"', "client('s3'"))
        and "demo" not in path.parts
    ]
    assert clients == []
