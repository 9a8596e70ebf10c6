"""The store server answers as S3 does where the product asks, and counts what a second server of its kind counts."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from obstore.exceptions import AlreadyExistsError, PreconditionError

from benchmarks.store import OWN_BUCKET, StoreServer, requests_of
from kfm_dagster.storage.s3 import S3Bucket

SECONDS = 15.0
LATENCY_SECONDS = 0.2


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Bucket]:
    _credentials(monkeypatch)
    with StoreServer(tmp_path, latency_ms=0) as server:
        yield S3Bucket(OWN_BUCKET, endpoint=server.endpoint_url, region="us-east-1", seconds=SECONDS)


def test_what_is_put_is_read_whole_and_by_range(bucket: S3Bucket) -> None:
    bucket.put("a/b c.txt", b"0123456789")
    whole, part = bucket.get("a/b c.txt"), bucket.get("a/b c.txt", options={"range": (2, 5)})
    head = bucket.get("a/b c.txt", options={"head": True})
    assert (whole.content, part.content, head.content) == (b"0123456789", b"234", b"")
    assert {one.meta["size"] for one in (whole, part, head)} == {10}
    assert bucket.get("a/b c.txt", options={"range": (8, 50)}).content == b"89"
    bucket.delete("a/b c.txt")
    with pytest.raises(FileNotFoundError):
        bucket.get("a/b c.txt")


def test_conditions_are_kept(bucket: S3Bucket) -> None:
    bucket.put("one", b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        bucket.put("one", b"second", mode="create")
    etag = bucket.get("one").meta["e_tag"]
    assert bucket.get("one", options={"range": (0, 9), "if_match": etag}).content == b"first"
    bucket.put("one", b"other and longer")
    with pytest.raises(PreconditionError):
        bucket.get("one", options={"range": (0, 9), "if_match": etag})


def test_listings_come_by_pages_and_by_folders(bucket: S3Bucket) -> None:
    keys = [f"day/{name}" for name in ("a.json", "b c.json", "sub/d.json", "sub/e.json", "z")]
    for key in (*keys, "other/f"):
        bucket.put(key, key.encode())
    pages = list(bucket.list("day", chunk_size=2))
    assert [[entry["path"] for entry in page] for page in pages] == [keys[:2], keys[2:4], keys[4:]]
    assert [entry["path"] for page in bucket.list("day", offset=keys[2]) for entry in page] == keys[3:]
    folder = bucket.list_with_delimiter("day")
    assert [entry["path"] for entry in folder["objects"]] == ["day/a.json", "day/b c.json", "day/z"]
    assert folder["common_prefixes"] == ["day/sub"]
    assert folder["objects"][0]["e_tag"] == bucket.get(keys[0]).meta["e_tag"]


def test_a_key_leads_to_nothing_outside(bucket: S3Bucket, tmp_path: Path) -> None:
    (tmp_path.parent / "secret").write_text("x")
    endpoint = bucket._endpoint
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(f"{endpoint}/{OWN_BUCKET}/%2e%2e/%2e%2e/secret", timeout=SECONDS)


def test_requests_wait_beside_each_other_and_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _credentials(monkeypatch)
    with StoreServer(tmp_path, latency_ms=LATENCY_SECONDS * 1000) as server:
        bucket = S3Bucket(OWN_BUCKET, endpoint=server.endpoint_url, region="us-east-1", seconds=SECONDS)
        begun = time.monotonic()
        bucket.put("one", b"123")
        assert time.monotonic() - begun >= LATENCY_SECONDS
        threads = [threading.Thread(target=bucket.get, args=("one",)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        counts = server.counts()
        assert (counts["PUT"], counts["GET"], counts["bytes"], counts["bytes_received"]) == (1, 8, 24, 3)
        assert 1 < counts["at_once"] <= 8
        assert requests_of(counts) == 9
        assert requests_of(server.counts()) == 0
        assert server.cpu_seconds() > 0


def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1,localhost")
