"""Object stores read only declared objects, each in one request; failures have codes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from unittest.mock import Mock

import pytest

from kfm_dagster.contracts.issues import IntegrityIssue
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.storage import objects
from kfm_dagster.storage.object_handle import FolderObject, ObjectReadError, RemoteObject, UndeclaredObjectError
from kfm_dagster.storage.objects import ObjectStores, open_store
from kfm_dagster_tests.factories import with_section
from kfm_dagster_tests.followers.announcements.web_server import WebAnswer, WebRequest, WebServer, open_web_server

REGISTRY = ContractRegistry.load()
HRRR = REGISTRY["hrrr"]
BUCKET = "noaa-hrrr-bdp-pds"
KEY = "hrrr.20251203/conus/hrrr.t00z.wrfsfcf06.grib2"
URI = f"s3://{BUCKET}/{KEY}"
DATA = b"GRIB" + bytes(range(256)) * 8


def use_endpoint(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")


@pytest.fixture
def s3(aws: EmbeddedCloud) -> ObjectStores:
    """A store with KEY, its sidecar, and an empty object."""
    client = aws.client("s3")
    client.create_bucket(Bucket=BUCKET)
    client.put_object(Bucket=BUCKET, Key=KEY, Body=DATA, ContentType="application/wmo-GRIB2")
    client.put_object(Bucket=BUCKET, Key=KEY + ".idx", Body=b"1:0:d=2025120300:TMP:surface:6 hour fcst:\n")
    client.put_object(Bucket=BUCKET, Key=KEY.replace("f06", "f07"), Body=b"")
    return ObjectStores()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the same objects, used instead of the bucket."""
    path = tmp_path / "root" / BUCKET / KEY
    path.parent.mkdir(parents=True)
    path.write_bytes(DATA)
    Path(f"{path}.idx").write_bytes(b"1:0:d=2025120300:TMP:surface:6 hour fcst:\n")
    Path(str(path).replace("f06", "f07")).write_bytes(b"")
    return tmp_path / "root"


@pytest.fixture(params=["s3", "folder"])
def stores(request: pytest.FixtureRequest) -> ObjectStores:
    if request.param == "folder":
        return ObjectStores(object_root=request.getfixturevalue("folder"))
    store: ObjectStores = request.getfixturevalue("s3")
    return store


@contextmanager
def unreadable(code: IntegrityIssue) -> Iterator[None]:
    """Check that reading an object fails with this code."""
    with pytest.raises(ObjectReadError) as error:
        yield
    assert error.value.code is code


class Scripted:
    """A loopback store that answers every request with one status; 0 gives no answer."""

    def __init__(self, server: WebServer) -> None:
        self.status = 200
        self.dated = True
        self.refuses_ranges = False
        self.server = server
        server.answers = self._answer

    @property
    def requests(self) -> list[str]:
        return [f"{request.command} {request.path}" for request in self.server.requests]

    def _answer(self, request: WebRequest) -> WebAnswer:
        headers = {"ETag": '"0123"'} | ({"Last-Modified": "Wed, 03 Dec 2025 00:04:20 GMT"} if self.dated else {})
        status, body = self.status or None, DATA
        if self.refuses_ranges and "range" in request.headers:
            status = 416
        if status == 200 and (requested := request.headers.get("range")):
            first, last = (int(part) for part in requested.removeprefix("bytes=").split("-"))
            body = DATA[first : last + 1]
            status, headers["Content-Range"] = 206, f"bytes {first}-{first + len(body) - 1}/{len(DATA)}"
        return WebAnswer(status=status, headers=headers, body=body)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    with open_web_server() as server:
        use_endpoint(monkeypatch, server.url(""))
        yield Scripted(server)


def test_probe_gives_head_and_first_bytes(stores: ObjectStores) -> None:
    handle = stores.open(HRRR, URI)
    assert handle.last_modified is None
    head, first = handle.probe(4)
    assert handle.last_modified == head.last_modified
    assert (head.size, first, handle.size) == (len(DATA), b"GRIB", len(DATA))
    assert head.etag == hashlib.md5(DATA).hexdigest()
    assert head.content_type in {"application/wmo-GRIB2", None}
    assert head.last_modified.tzinfo is not None
    assert handle.head() == head


def test_a_read_beyond_the_end_returns_the_existing_bytes(stores: ObjectStores) -> None:
    handle = stores.open(HRRR, URI, size=len(DATA))
    assert handle.read(4, 3) == DATA[4:7]
    assert handle.read(len(DATA) - 2, 100) == DATA[-2:]
    assert handle.read(len(DATA), 10) == b""
    assert handle.read(0, len(DATA) * 2) == DATA


@pytest.mark.clause("SEC-09")
def test_an_unexpected_answer_is_an_error_of_the_store(scripted: Scripted) -> None:
    odd = ObjectStores().open(HRRR, URI)
    scripted.status = 416
    with unreadable(IntegrityIssue.STORAGE_UNAVAILABLE):
        odd.head()
    scripted.refuses_ranges = True
    scripted.status = 200
    with unreadable(IntegrityIssue.STORAGE_UNAVAILABLE):
        odd.probe(4)
    odd = RemoteObject(Mock(get=Mock(side_effect=OverflowError)), uri=URI, key=KEY, size=None, etag=None)
    for ask in (odd.head, lambda: odd.probe(4)):
        with pytest.raises(ObjectReadError, match="OverflowError") as refused:
            ask()
        assert refused.value.code is IntegrityIssue.STORAGE_UNAVAILABLE


def test_an_empty_and_a_missing_object_have_different_codes(stores: ObjectStores) -> None:
    handle = stores.open(HRRR, URI.replace("f06", "f07"))
    head, first = handle.probe(4)
    assert (head.size, first) == (0, b"")
    assert handle.read(0, 10) == b""
    with unreadable(IntegrityIssue.MISSING_OBJECT):
        stores.open(HRRR, URI.replace("f06", "f08")).probe(4)
    assert stores.open_sidecar(HRRR, URI.replace("f06", "f07"), ".idx") is None


def test_listing_returns_only_data_objects_of_the_day(stores: ObjectStores) -> None:
    both = {URI, URI.replace("f06", "f07")}
    listed = {listed_object.uri: listed_object for listed_object in stores.list_day(HRRR, date(2025, 12, 3))}
    assert set(listed) == both
    entry = listed[URI]
    assert (entry.size, entry.etag) == (len(DATA), hashlib.md5(DATA).hexdigest())
    assert entry.last_modified <= datetime.now(UTC)
    assert list(stores.list_day(HRRR, date(2025, 12, 4))) == []
    for listing, uris in {
        "hrrr.%Y%m%d/conus/hrrr.t00z.wrfsfcf06": {URI},  # a prefix that ends within a name
        "hrrr.%Y%m%d/*/": both,  # every folder that matches the star
        "hrrr.%Y%m%d/*/hrrr.t00z.wrfsfcf0": both,
    }.items():
        contract = with_section(HRRR, "storage", listing=[listing])
        assert {entry.uri for entry in stores.list_day(contract, date(2025, 12, 3))} == uris, listing
        assert list(stores.list_day(contract, date(2025, 12, 4))) == []


def test_an_object_that_shrinks_while_it_is_read_has_the_code_of_an_unavailable_store(s3: ObjectStores) -> None:
    handle = s3.open(HRRR, URI, size=len(DATA) * 9)
    with unreadable(IntegrityIssue.STORAGE_UNAVAILABLE):
        handle.read(len(DATA) * 8, 10)


def test_probe_read_and_sidecar_need_one_request_each(scripted: Scripted) -> None:
    handle = ObjectStores().open(HRRR, URI)
    handle.probe(16)
    assert handle.read(2, 8) == DATA[2:10]
    assert scripted.requests == [f"GET /{BUCKET}/{KEY}"]
    handle.read(1000, 8)
    assert len(scripted.requests) == 2
    sidecar = ObjectStores().open_sidecar(HRRR, URI, ".idx")
    assert sidecar.read(0, sidecar.size) == DATA
    assert len(scripted.requests) == 3


@pytest.mark.clause("BEY-04")
@pytest.mark.parametrize("dated", [True, False])
def test_a_sidecar_s_time_comes_from_the_request_that_opens_it(scripted: Scripted, *, dated: bool) -> None:
    scripted.dated = dated
    sidecar = ObjectStores().open_sidecar(HRRR, URI, ".idx")
    assert sidecar.last_modified == (datetime(2025, 12, 3, 0, 4, 20, tzinfo=UTC) if dated else None)
    assert len(scripted.requests) == 1


def test_requests_use_the_environment_s_proxy(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", os.environ["AWS_ENDPOINT_URL"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store.invalid")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert ObjectStores().open(HRRR, URI).probe(4)[1] == DATA[:4]
    assert scripted.requests == [f"GET http://store.invalid/{BUCKET}/{KEY}"]
    monkeypatch.setenv("NO_PROXY", "store.invalid")
    monkeypatch.setattr(objects, "REQUEST_SECONDS", 0.5)
    with pytest.raises(ObjectReadError, match="does not answer"):
        ObjectStores().open(HRRR, URI).probe(4)
    assert len(scripted.requests) == 1


@pytest.mark.clause("SEC-01")
def test_undeclared_objects_are_refused_before_any_request(scripted: Scripted) -> None:
    for uri in [
        f"s3://elsewhere/{KEY}",
        f"s3://{BUCKET}/private/secrets.txt",
        f"s3://{BUCKET}/{KEY}/../../../secrets.txt",
        f"s3://{BUCKET}/{KEY}\x00",
        f"s3://{BUCKET}//etc/passwd",
        f"s3://{BUCKET}@elsewhere.example/{KEY}",
        f"s3://{BUCKET}.elsewhere.example/{KEY}",
        f"s3://{BUCKET}/{KEY}?versionId=1",
        f"s3://{BUCKET}/{KEY}.idx.idx",
        f"https://elsewhere.example/{KEY}",
        f"file:///{BUCKET}/{KEY}",
        "",
    ]:
        stores = ObjectStores()
        with pytest.raises(UndeclaredObjectError) as caught:
            stores.open(HRRR, uri)
        assert caught.value.code is IntegrityIssue.ACCESS_DENIED
        with pytest.raises(UndeclaredObjectError):
            stores.open_sidecar(HRRR, URI, ".exe")
        assert scripted.requests == []


@pytest.mark.clause("SEC-01")
def test_no_symbolic_link_leads_out_of_the_folder_of_objects(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"GRIB secret")
    stores = ObjectStores(object_root=folder)
    file = folder / BUCKET / KEY.replace("f06", "f09")
    file.symlink_to(outside / "secret")
    with unreadable(IntegrityIssue.ACCESS_DENIED):
        stores.open(HRRR, URI.replace("f06", "f09")).probe(4)
    day = folder / BUCKET / "hrrr.20251204"
    day.symlink_to(outside, target_is_directory=True)
    (outside / "conus").mkdir()
    (outside / "conus" / "hrrr.t00z.wrfsfcf06.grib2").write_bytes(b"GRIB secret")
    with pytest.raises(UndeclaredObjectError):
        stores.open(HRRR, URI.replace("20251203", "20251204")).head()
    assert list(stores.list_day(HRRR, date(2025, 12, 4))) == []
    assert URI.replace("f06", "f09") not in {entry.uri for entry in stores.list_day(HRRR, date(2025, 12, 3))}


def test_a_pipe_in_the_folder_does_not_hang_the_run(folder: Path) -> None:
    os.mkfifo(folder / BUCKET / KEY.replace("f06", "f10"))
    with pytest.raises(ObjectReadError):
        ObjectStores(object_root=folder).open(HRRR, URI.replace("f06", "f10")).probe(4)


def test_an_overwritten_file_gets_a_new_etag_or_none_if_larger_than_one_upload_part(folder: Path) -> None:
    stores, path = ObjectStores(object_root=folder), folder / BUCKET / KEY
    before = stores.open(HRRR, URI).head().etag
    path.write_bytes(DATA[::-1])
    assert stores.open(HRRR, URI).head().etag not in {before, None}
    os.truncate(path, 8 * 1024 * 1024 + 1)
    assert stores.open(HRRR, URI).probe(4)[0].etag is None


def test_a_handle_keeps_reading_its_file_after_a_replacement(folder: Path, tmp_path: Path) -> None:
    handle = ObjectStores(object_root=folder).open(HRRR, URI)
    before = handle.head()
    (tmp_path / "newer").write_bytes(b"newer")
    (tmp_path / "newer").replace(folder / BUCKET / KEY)
    assert (handle.size, handle.read(0, 4), handle.head()) == (len(DATA), DATA[:4], before)


def test_buckets_can_be_folders_in_the_root_of_the_file_system(folder: Path) -> None:
    root, bucket, *parts = folder.resolve().parts
    handle = FolderObject(Path(root), uri=URI, bucket=bucket, key="/".join([*parts, BUCKET, KEY]))
    assert handle.read(0, 4) == DATA[:4]


@pytest.mark.parametrize(
    ("status", "code", "requests"),
    [
        (403, IntegrityIssue.ACCESS_DENIED, 1),
        (401, IntegrityIssue.ACCESS_DENIED, 1),
        (404, IntegrityIssue.MISSING_OBJECT, 1),
        (503, IntegrityIssue.STORAGE_UNAVAILABLE, 3),
    ],
)
def test_statuses_have_issue_codes_and_bounded_retries(
    scripted: Scripted, status: int, code: IntegrityIssue, requests: int
) -> None:
    scripted.status = status
    with pytest.raises(ObjectReadError) as caught:
        ObjectStores().open(HRRR, URI).probe(4)
    assert caught.value.code is code
    assert len(scripted.requests) == requests
    assert "127.0.0.1" not in str(caught.value)


def test_a_stalled_or_missing_store_is_unavailable(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "REQUEST_SECONDS", 0.2)
    scripted.status = 0
    with unreadable(IntegrityIssue.STORAGE_UNAVAILABLE):
        ObjectStores().open(HRRR, URI).head()
    use_endpoint(monkeypatch, "http://127.0.0.1:1")
    with unreadable(IntegrityIssue.STORAGE_UNAVAILABLE):
        ObjectStores().open(HRRR, URI).probe(4)
    with pytest.raises(ObjectReadError):
        list(ObjectStores().list_day(HRRR, date(2025, 12, 3)))


def test_plain_http_is_for_loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    use_endpoint(monkeypatch, "http://store.example:9000")
    monkeypatch.delenv("AWS_ALLOW_HTTP", raising=False)
    with pytest.raises(ConfigurationError, match="no TLS"):
        ObjectStores().open(HRRR, URI)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    ObjectStores().open(HRRR, URI)


def test_stores_of_other_clouds_open_without_a_request() -> None:
    for provider in ("gcp", "azure"):
        contract = with_section(HRRR, "storage", provider=provider)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "noaa")
            assert ObjectStores(anonymous=True).open(contract, URI).uri == URI


def test_the_endpoint_of_a_contract_is_the_provider_s_unless_the_environment_replaces_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for provider, variables, url in (
        ("aws", {}, "https://s3.us-east-1.amazonaws.com/noaa-hrrr-bdp-pds"),
        ("aws", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000/"}, "http://127.0.0.1:9000/noaa-hrrr-bdp-pds"),
        ("gcp", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000/"}, "https://storage.googleapis.com/noaa-hrrr-bdp-pds"),
        (
            "azure",
            {"AZURE_STORAGE_ACCOUNT_NAME": "noaa"},
            "https://noaa.blob.core.windows.net/noaa-hrrr-bdp-pds",
        ),
        ("azure", {}, None),
    ):
        for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AZURE_STORAGE_ACCOUNT_NAME"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        contract = with_section(HRRR, "storage", provider=provider)
        assert ObjectStores().endpoint(contract) == url
        assert ObjectStores(object_root=tmp_path).endpoint(contract) is None


def test_open_store_writes_to_folder_and_bucket(aws: EmbeddedCloud, tmp_path: Path) -> None:
    client = aws.client("s3")
    client.create_bucket(Bucket="kfm-own")
    for location in (str(tmp_path / "new" / "folder"), "s3://kfm-own/some/prefix"):
        open_store(location).put("a/b", b"content")
    assert (tmp_path / "new" / "folder" / "a" / "b").read_bytes() == b"content"
    assert client.get_object(Bucket="kfm-own", Key="some/prefix/a/b")["Body"].read() == b"content"
    with pytest.raises(ConfigurationError, match="KFM_STORAGE_URL"):
        open_store("ftp://elsewhere/x")


def test_a_handle_reads_only_one_version_of_an_object(aws: EmbeddedCloud, s3: ObjectStores) -> None:
    etag = hashlib.md5(DATA, usedforsecurity=False).hexdigest()
    known, probed = s3.open(HRRR, URI, size=len(DATA), etag=etag), s3.open(HRRR, URI)
    probed.probe(4)
    assert known.read(100, 8) == probed.read(100, 8) == DATA[100:108]
    aws.client("s3").put_object(Bucket=BUCKET, Key=KEY, Body=DATA[::-1])
    for handle in (known, probed):
        with pytest.raises(ObjectReadError, match="written again while it was read") as refused:
            handle.read(100, 8)
        assert refused.value.code is IntegrityIssue.STORAGE_UNAVAILABLE
    reopened = s3.open(HRRR, URI)
    reopened.probe(4)
    assert reopened.read(100, 8) == DATA[::-1][100:108]
