"""The store server answers as S3 does where the product asks, and counts what a second server of its kind counts."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from obstore.exceptions import AlreadyExistsError, PreconditionError

from benchmarks.objects import SAMPLES, make_objects
from benchmarks.store import OWN_BUCKET, StoreServer, requests_of
from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.deployment.local import free_port
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.operators.message_parse import parse_message
from kfm_dagster.readers.base import ReadRequest
from kfm_dagster.readers.registry import READERS
from kfm_dagster.storage.objects import ObjectStores
from kfm_dagster.storage.s3 import S3Bucket

YARDSTICK = Path(__file__).resolve().parents[3] / "shared/tools/slow_s3.py"
"""A server that somebody else wrote for the same purpose; it is not part of the repository."""
UNITS = 4
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


@pytest.mark.skipif(not YARDSTICK.exists(), reason="the yardstick is not on this machine")
@pytest.mark.parametrize("dataset", list(SAMPLES))
def test_reading_costs_as_much_as_from_the_yardstick(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _credentials(monkeypatch)
    bodies = make_objects(tmp_path, dataset, UNITS)
    with StoreServer(tmp_path, latency_ms=0) as server:
        own, _ = _read_all(dataset, bodies, server.endpoint_url, server.counts, monkeypatch)
    with _yardstick(tmp_path) as endpoint:
        other, _ = _read_all(dataset, bodies, endpoint, lambda: _counts(endpoint), monkeypatch)
    assert requests_of(own) >= UNITS
    assert requests_of(own) == pytest.approx(requests_of(other), rel=0.1)
    assert own["bytes"] == pytest.approx(other["bytes"], rel=0.1)


@pytest.mark.parametrize("dataset", list(SAMPLES))
def test_objects_of_real_size_are_read_as_whole_ones(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _credentials(monkeypatch)
    bodies = make_objects(tmp_path, dataset, UNITS, real_size=True)
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".idx"]
    assert len(files) == UNITS
    assert min(path.stat().st_size for path in files) > 1_000_000
    assert sum(path.stat().st_blocks * 512 for path in files) < 4_000_000
    with StoreServer(tmp_path, latency_ms=0) as server:
        counts, findings = _read_all(dataset, bodies, server.endpoint_url, server.counts, monkeypatch)
    assert findings == 0
    assert counts["bytes"] < UNITS * 2_000_000


def _read_all(
    dataset: str,
    bodies: list[str],
    endpoint: str,
    counts: Callable[[], Mapping[str, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[dict[str, int], int]:
    """Probe and read every object as two steps of a run do; return what the server counted, and the findings."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    registry = ContractRegistry.load()
    contract, stores = registry[dataset], ObjectStores()
    counts()
    findings = 0
    for body in bodies:
        (unit,) = parse_message(SqsMessage(message_id="m", body=body), registry=registry, queue="q").envelopes
        handle = stores.open(contract, unit.object_uri)
        head, _ = handle.probe(4)
        assert (head.size, head.etag) == (unit.object_size, unit.etag)
        match = registry.grammars[dataset].match(unit.key)
        assert match is not None
        request = ReadRequest(
            key=unit.key,
            groups=match.groups,
            source=handle,
            sidecar=lambda suffix, uri=unit.object_uri: stores.open_sidecar(contract, uri, suffix),
        )
        header = READERS[contract.metadata_extract.reader](request)
        # The samples come without their index.
        assert {issue for issue, _ in header.findings} <= {MetadataIssue.SIDECAR_MISSING}
        findings += len(header.findings)
    return dict(counts()), findings


@contextmanager
def _yardstick(root: Path) -> Iterator[str]:
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    with subprocess.Popen([sys.executable, str(YARDSTICK), str(root), str(port), "0"]) as server:
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                _counts(endpoint)
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield endpoint
        server.kill()


def _counts(endpoint: str) -> dict[str, int]:
    with urllib.request.urlopen(f"{endpoint}/__counts", timeout=SECONDS) as answer:
        counts: dict[str, int] = json.loads(answer.read())
    return counts


def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1,localhost")
