"""The S3 client: redirects and invalid answers of stores, and the client's signatures."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import quote, urlencode

import pytest
from botocore import auth
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials
from hypothesis import example, given
from hypothesis import strategies as st
from obstore.exceptions import GenericError

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
from kfm_dagster.storage.publisher import PublishError, open_publisher
from kfm_dagster.storage.s3 import (
    HEADER_CHARS,
    LARGEST_SIZE,
    LISTING_BYTES,
    NO_TIME,
    REFUSAL_BYTES,
    OddAnswerError,
    S3Bucket,
)
from kfm_dagster.storage.signature import signed_headers
from kfm_dagster_tests.followers.announcements.web_server import WebAnswer, WebServer, open_web_server

CLAUSE = pytest.mark.clause("SEC-06")
HRRR = ContractRegistry.load()["hrrr"]
URI = f"s3://{HRRR.storage.buckets[0]}/hrrr.20251203/conus/hrrr.t00z.wrfsfcf06.grib2"
TOKEN = "a-session-token-that-is-nobody-elses-business"


@pytest.fixture(params=["127.0.0.1", "127.0.0.2"])
def elsewhere(request: pytest.FixtureRequest) -> Iterator[WebServer]:
    """An unconfigured server, at another port or host."""
    with open_web_server(request.param) as server:
        yield server


@pytest.fixture
def endpoint(elsewhere: WebServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    """The configured endpoint, which redirects to the unconfigured server."""
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
    endpoint.requests.clear()
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
def test_a_redirected_read_is_refused_and_not_followed(endpoint: WebServer, elsewhere: WebServer, read: str) -> None:
    for status, anonymous in itertools.product((301, 302, 303, 307, 308), (False, True)):
        redirects(endpoint, elsewhere, status=status)
        with pytest.raises(ObjectReadError) as caught:
            READS[read](ObjectStores(anonymous=anonymous))
        assert elsewhere.requests == []
        assert len(endpoint.requests) == 1, "a retry would not help"
        assert (TOKEN in endpoint.requests[0].headers.get("x-amz-security-token", "")) is not anonymous
        line = str(caught.value)
        assert caught.value.code is IntegrityIssue.STORAGE_UNAVAILABLE
        assert endpoint.url("").removeprefix("http://") in line
        assert elsewhere.url("").removeprefix("http://") in line
        assert "redirect" in line
        assert "next: correct AWS_ENDPOINT_URL" in line
        assert TOKEN not in line
        assert "\n" not in line


@CLAUSE
def test_the_region_of_a_bucket_in_another_region_is_named(endpoint: WebServer, elsewhere: WebServer) -> None:
    for region, step in (
        ("eu-west-1", "next: the bucket is in region eu-west-1"),
        ("evil.example/#", "next: correct AWS_ENDPOINT_URL"),
    ):
        redirects(endpoint, elsewhere, status=301, **{"x-amz-bucket-region": region})
        with pytest.raises(ObjectReadError, match=step):
            ObjectStores().open(HRRR, URI).head()
    assert elsewhere.requests == []


@CLAUSE
def test_no_store_of_the_deployment_follows_a_redirect(endpoint: WebServer, elsewhere: WebServer) -> None:
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
    assert len(endpoint.requests) == 9
    assert elsewhere.requests == []


@CLAUSE
def test_the_queues_client_does_not_follow_redirects(endpoint: WebServer, elsewhere: WebServer, tmp_path: Path) -> None:
    with pytest.raises(QueueUnavailableError):
        connect(Settings(home=tmp_path)).depth()
    assert endpoint.requests
    assert elsewhere.requests == []


@CLAUSE
def test_the_package_has_only_one_s3_client() -> None:
    root = Path(__file__).resolve().parents[2] / "kfm_dagster"
    clients = [
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if any(sign in path.read_text(encoding="utf-8") for sign in ("S3Store", 'client("s3"', "client('s3'"))
        and "demo" not in path.parts
    ]
    assert clients == []


ASKED = 128 * 1024
ENDLESS = 1024 * 1024 * 1024
SOCKETS = 32 * 1024 * 1024
"""More bytes than the buffers of both ends hold before the sender notices that the connection is closed."""


@contextmanager
def answering(head: str, body: int) -> Iterator[tuple[S3Bucket, Callable[[], int]]]:
    """Yield a bucket whose store sends `body` bytes, and a function that counts the sent bytes."""
    sent: list[int] = []

    def serve(server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection, suppress(OSError):
                    connection.recv(65_536)
                    connection.sendall(f"HTTP/1.1 {head}\r\nConnection: close\r\n\r\n".encode("latin-1"))
                    for begin in range(0, body, 65_536):
                        part = bytes(min(65_536, body - begin))
                        connection.sendall(part)
                        sent.append(len(part))

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,), daemon=True)
        thread.start()
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        yield S3Bucket("b", endpoint=endpoint, region="us-east-1", seconds=30, anonymous=True), lambda: sum(sent)
        server.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def test_an_answer_other_than_the_range_is_refused_without_reading_it_completely() -> None:
    for case, (head, body, why) in {
        "the whole object": (f"200 OK\r\nContent-Length: {ASKED}", ASKED, "another range"),
        "no range stated": (f"206 Partial Content\r\nContent-Length: {ASKED}", ASKED, "another range"),
        "one byte more": (f"206 Partial Content\r\nContent-Length: {ASKED + 1}", ASKED + 1, "more bytes"),
        "a gibibyte": (f"200 OK\r\nContent-Length: {ENDLESS}", ENDLESS, "more bytes"),
        "truncated": (f"206 Partial Content\r\nContent-Length: {ASKED}", ASKED - 1, "does not answer"),
    }.items():
        with answering(head, body) as (bucket, sent):
            with pytest.raises(GenericError, match=why):
                bucket.get("k", options={"range": (0, ASKED)})
            assert sent() < SOCKETS, case


DATED = "Last-Modified: Wed, 03 Dec 2025 00:04:20 {zone}"


@pytest.mark.clause("SEC-09")
def test_an_invalid_header_is_an_error_of_the_store() -> None:
    for header in (
        'ETag: "\xe9"',
        f"ETag: {'e' * (HEADER_CHARS + 1)}",
        "Content-Type: text/\xff",
        "Last-Modified: yesterday",
        "Last-Modified: Wed, 03 Dec 99999 00:04:20 GMT",
        "Last-Modified: Wed, 31 Dec 1969 23:59:59 GMT",
        "Last-Modified: Fri, 31 Dec 9999 23:59:59 -0100",
        f"Content-Length: {LARGEST_SIZE + 1}",
        "Transfer-Encoding: chunked",
    ):
        length = "" if header.startswith(("Content-Length", "Transfer")) else "\r\nContent-Length: 7"
        with answering(f"200 OK\r\n{header}{length}", 0) as (bucket, _), pytest.raises(GenericError):
            bucket.get("k", options={"head": True})


@pytest.mark.clause("SEC-09")
def test_the_size_of_an_object_comes_from_the_content_range() -> None:
    for content_range, size in (
        (f"bytes 0-6/{LARGEST_SIZE}", LARGEST_SIZE),
        (f"bytes 0-6/{LARGEST_SIZE + 1}", None),
        (f"bytes 0-6/{10**30}", None),
        ("bytes 0-6/" + "9" * 1000, None),
        ("bytes 0-6/*", None),
        ("bytes 0-6/6", None),
        ("bytes 1-7/8", None),
        ("bytes 0-5/7", None),
        ("bytes 0-6/\u0667".encode().decode("latin-1"), None),
    ):
        head = f"206 Partial Content\r\nContent-Length: 7\r\nContent-Range: {content_range}"
        with answering(head, 7) as (bucket, _):
            if size is None:
                with pytest.raises(OddAnswerError):
                    bucket.get("k", options={"range": (0, 7)})
            else:
                assert bucket.get("k", options={"range": (0, 7)}).meta["size"] == size


def test_times_of_objects_are_in_utc() -> None:
    for zone, hour in (("GMT", 0), ("-0000", 0), ("+0100", 23)):
        with answering(f"200 OK\r\nContent-Length: 7\r\n{DATED.format(zone=zone)}", 0) as (bucket, _):
            time = bucket.get("k", options={"head": True}).meta["last_modified"]
        assert (time.tzinfo, time.hour) == (NO_TIME.tzinfo, hour)


PAGE = "<ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>{inside}</ListBucketResult>"
ENTRY = "<Contents><Key>k</Key><Size>{size}</Size><LastModified>{time}</LastModified></Contents>"


@pytest.mark.clause("SEC-09")
def test_an_invalid_listing_is_an_error_of_the_store() -> None:
    for page in (
        "no XML",
        "<?xml version='1.0' encoding='none'?><a/>",
        PAGE.format(inside="<Contents/>"),
        PAGE.format(inside=ENTRY.format(size=-1, time="2025-12-03T00:00:00Z")),
        PAGE.format(inside=ENTRY.format(size=10**30, time="2025-12-03T00:00:00Z")),
        PAGE.format(inside=ENTRY.format(size=1, time="yesterday")),
        PAGE.format(inside="<NextContinuationToken>again</NextContinuationToken>"),
    ):
        answer = answering(f"200 OK\r\nContent-Length: {len(page)}\r\n\r\n{page}", 0)
        with answer as (bucket, _), pytest.raises(OddAnswerError):
            list(islice(bucket.list("folder"), 3))
    endless = answering(f"200 OK\r\nContent-Length: {LISTING_BYTES + 1}", LISTING_BYTES + 1)
    with endless as (bucket, _), pytest.raises(OddAnswerError, match="more bytes than were requested"):
        next(bucket.list("folder"))


def test_the_text_of_a_refusal_can_be_longer_than_the_range() -> None:
    refusing = answering(f"404 Not Found\r\nContent-Length: {REFUSAL_BYTES}", REFUSAL_BYTES)
    with refusing as (bucket, _), pytest.raises(FileNotFoundError):
        bucket.get("k", options={"range": (0, 4)})


AT = st.datetimes(timezones=st.just(UTC))
ASCII = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=20)
QUERY = st.dictionaries(st.sampled_from(["list-type", "prefix", "start-after", "max-keys"]), st.text(max_size=10))


@pytest.mark.clause("SEC-06")
@given(
    secret=st.text(min_size=1, max_size=50),
    token=st.none() | ASCII.filter(str.strip),
    endpoint=st.sampled_from(["http://127.0.0.1:9000", "https://s3.us-east-1.amazonaws.com", "https://store:443"]),
    method=st.sampled_from(["GET", "HEAD", "PUT", "DELETE"]),
    key=st.text(min_size=1, max_size=40),
    query=QUERY,
    headers=st.dictionaries(st.sampled_from(["Range", "If-Match", "If-None-Match", "Content-Type"]), ASCII),
    body=st.binary(max_size=50),
    at=AT,
)
@example(
    secret="s",
    token=None,
    endpoint="http://store:80",
    method="GET",
    key="a b/%2F+ü~",
    query={"prefix": "a/b c"},
    headers={"Range": "bytes=0-1"},
    body=b"",
    at=datetime(2026, 1, 2, tzinfo=UTC),
)
def test_headers_and_signature_equal_those_of_botocore(
    secret: str,
    token: str | None,
    endpoint: str,
    method: str,
    key: str,
    query: dict[str, str],
    headers: dict[str, str],
    body: bytes,
    at: datetime,
) -> None:
    credentials = ReadOnlyCredentials("AKIDEXAMPLE", secret, token)
    url = f"{endpoint}/bucket/{quote(key, safe='/~')}"
    if query:
        url += "?" + urlencode(query, quote_via=quote)
    request = AWSRequest(method=method, url=url, data=body, headers=dict(headers))
    with patch.object(auth, "get_current_datetime", lambda: at.replace(tzinfo=None)):
        S3SigV4Auth(credentials, "s3", "eu-west-1").add_auth(request)
    ours = signed_headers(credentials, "eu-west-1", method, url, headers, body, at)
    assert ours == dict(request.headers.items())
