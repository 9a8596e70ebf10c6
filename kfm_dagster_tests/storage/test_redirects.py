"""Redirects: a store that sends us elsewhere is refused, and the server named there never hears of us."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
from kfm_dagster.storage.objects import ObjectReadError, ObjectStores, open_store

CLAUSE = pytest.mark.clause("SEC-06")
HRRR = ContractRegistry.load()["hrrr"]
URI = f"s3://{HRRR.storage.buckets[0]}/hrrr.20251203/conus/hrrr.t00z.wrfsfcf06.grib2"
TOKEN = "a-session-token-that-is-nobody-elses-business"


@dataclass
class Site:
    """A loopback server: redirects everything, or would answer everything."""

    location: str = ""
    status: int = 307
    headers: dict[str, str] = field(default_factory=dict)
    requests: list[dict[str, str]] = field(default_factory=list)
    url: str = ""


@contextlib.contextmanager
def serving(host: str) -> Iterator[Site]:
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            site.requests.append(
                {"line": self.requestline} | {name.lower(): text for name, text in self.headers.items()}
            )
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(site.status if site.location else 200)
            for name, text in site.headers.items():
                self.send_header(name, text)
            if site.location:
                self.send_header("Location", site.location + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer  # noqa: N815 - the protocol's names

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((host, 0), Handler)
    site.url = f"http://{host}:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield site
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(params=["127.0.0.1", "127.0.0.2"])
def elsewhere(request: pytest.FixtureRequest) -> Iterator[Site]:
    """The server that nobody configured: at another port, or another host."""
    with serving(request.param) as site:
        yield site


@pytest.fixture
def endpoint(elsewhere: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """The configured endpoint, which redirects to the other one."""
    with serving("127.0.0.1") as site:
        site.location = elsewhere.url
        for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_SQS", "HTTP_PROXY", "http_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_ENDPOINT_URL", site.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ASIATESTING")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        yield site


READS: dict[str, Callable[[ObjectStores], Any]] = {
    "head": lambda stores: stores.open(HRRR, URI).head(),
    "probe": lambda stores: stores.open(HRRR, URI).probe(16),
    "read": lambda stores: stores.open(HRRR, URI, size=100).read(0, 16),
    "sidecar": lambda stores: stores.open_sidecar(HRRR, URI, ".idx"),
    "list": lambda stores: list(stores.list_day(HRRR, date(2025, 12, 3))),
}


@CLAUSE
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("anonymous", [False, True])
def test_a_redirected_read_is_refused_and_goes_nowhere_else(
    endpoint: Site, elsewhere: Site, read: str, status: int, anonymous: bool
) -> None:
    endpoint.status = status
    with pytest.raises(ObjectReadError) as caught:
        READS[read](ObjectStores(anonymous=anonymous))
    assert elsewhere.requests == []
    assert len(endpoint.requests) == 1, "trying again would not help"
    assert (TOKEN in endpoint.requests[0].get("x-amz-security-token", "")) is not anonymous
    line = str(caught.value)
    assert caught.value.code is IntegrityIssue.STORAGE_UNAVAILABLE
    assert endpoint.url.removeprefix("http://") in line
    assert elsewhere.url.removeprefix("http://") in line
    assert "redirect" in line
    assert "next: correct AWS_ENDPOINT_URL" in line
    assert TOKEN not in line
    assert "\n" not in line


@CLAUSE
def test_a_bucket_of_another_region_is_named(endpoint: Site, elsewhere: Site) -> None:
    endpoint.status, endpoint.headers = 301, {"x-amz-bucket-region": "eu-west-1"}
    with pytest.raises(ObjectReadError, match="next: the bucket is in region eu-west-1"):
        ObjectStores().open(HRRR, URI).head()
    endpoint.headers = {"x-amz-bucket-region": "evil.example/#"}
    with pytest.raises(ObjectReadError, match="next: correct AWS_ENDPOINT_URL"):
        ObjectStores().open(HRRR, URI).head()
    assert elsewhere.requests == []


@CLAUSE
def test_no_store_of_ours_follows_a_redirect(endpoint: Site, elsewhere: Site) -> None:
    store = open_store("s3://own/prefix")
    with pytest.raises(DependencyUnavailableError, match="redirect"):
        Landing(store).land([SqsMessage(message_id="m", body="{}")])
    with pytest.raises(DependencyUnavailableError, match="redirect"):
        Landing(store).read(f"sha256:{'0' * 64}")
    with pytest.raises(DependencyUnavailableError, match="redirect"):
        ObjectRunState(store, branch="main").of_run("run-1")
    with pytest.raises(DependencyUnavailableError, match="redirect"):
        Artifacts(store).put(b"content", suffix="x")
    with pytest.raises(DependencyUnavailableError, match="redirect"):
        Artifacts(store).get(ArtifactReference(uri="a", sha256="0" * 64))
    publisher = open_publisher("s3://own/catalog")
    for attempt in (lambda: publisher.read(["a"]), lambda: publisher.names("a"), lambda: publisher.remove(["a"])):
        with pytest.raises(PublishError, match="redirect"):
            attempt()
    with publisher.staging({"a": b"{}"}) as staged:
        assert set(staged.promote(["a"])) == {"a"}
    assert len(endpoint.requests) == 9
    assert elsewhere.requests == []


@CLAUSE
def test_the_queues_client_follows_none_either(endpoint: Site, elsewhere: Site, tmp_path: Path) -> None:
    with pytest.raises(QueueUnavailableError):
        connect(Settings(home=tmp_path)).depth()
    assert endpoint.requests
    assert elsewhere.requests == []


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
