"""The landing zone stores equal messages once, overwrites none, and detects corruption."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import MemoryStore

from kfm_dagster.errors import ArtifactError, DependencyUnavailableError
from kfm_dagster.notifications.landing import Landing
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.storage.objects import open_store
from kfm_dagster_tests.commands import state_of
from kfm_dagster_tests.factories import landed_path

SENT = datetime(2025, 12, 3, 0, 4, 20, 123000, tzinfo=UTC)


def message(number: int, *, receipt: str | None = None, count: int = 0) -> SqsMessage:
    return SqsMessage(
        message_id=f"m{number}", body=f'{{"n": {number}}}', receipt_handle=receipt, receive_count=count, sent_at=SENT
    )


@pytest.mark.clause("IEN-14")
def test_messages_are_stored_once_also_if_redelivered_in_another_order(tmp_path: Path) -> None:
    landing = Landing(open_store(str(tmp_path)))
    first = landing.land([message(1, receipt="r1", count=1), message(2, receipt="r2", count=1)])
    before = state_of(tmp_path)
    again = landing.land([message(2, receipt="r9", count=2), message(1, receipt="r8", count=3), message(1)])
    assert again == first
    assert len(landing.read(first)) == 2
    assert state_of(tmp_path) == before
    assert [path for path, content in before.items() if content] == [landed_path(first)]


@pytest.mark.clause("IEN-14")
def test_existing_object_is_never_overwritten(tmp_path: Path) -> None:
    landing = Landing(open_store(str(tmp_path)))
    landed = landing.land([message(1)])
    (tmp_path / landed_path(landed)).write_bytes(b"someone was here")
    assert landing.land([message(1)]) == landed
    assert (tmp_path / landed_path(landed)).read_bytes() == b"someone was here"


@pytest.mark.clause("IEN-14")
def test_corruption_is_detected_on_read_by_the_digest_of_the_canonical_lines(tmp_path: Path) -> None:
    landing = Landing(open_store(str(tmp_path)))
    landed = landing.land([message(1)])
    line = b'{"body":"{\\"n\\": 1}","message_id":"m1","sent_at":"2025-12-03T00:04:20.123000Z"}\n'
    assert gzip.decompress((tmp_path / landed_path(landed)).read_bytes()) == line
    assert landed == "sha256:7b14c6ee687050a9782a553955011273fd736955fc7526a5531d11f5f4f7ec25"
    for corrupted in (
        b"",
        b"no gzip",
        gzip.compress(b'{"body":"other","message_id":"m1","sent_at":null}\n', mtime=0),
        gzip.compress(b"x" * 1000, mtime=0)[:-4],
    ):
        (tmp_path / landed_path(landed)).write_bytes(corrupted)
        with pytest.raises(ArtifactError, match="corrupted"):
            landing.read(landed)
    with pytest.raises(ArtifactError, match="gone"):
        landing.read("sha256:" + "0" * 64)
    with pytest.raises(ArtifactError, match="digest"):
        landing.read("sha256:../../etc/passwd")


def test_landing_without_a_store_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with pytest.raises(DependencyUnavailableError, match="landing zone"):
        Landing(open_store("s3://nowhere/landing")).land([message(1)])


@given(st.lists(st.tuples(st.text(min_size=1, max_size=5), st.text(max_size=50)), max_size=5, unique_by=lambda p: p[0]))
def test_bodies_are_read_unchanged(pairs: list[tuple[str, str]]) -> None:
    landing = Landing(MemoryStore())
    sent = [SqsMessage(message_id=identity, body=body, sent_at=SENT) for identity, body in pairs]
    read = landing.read(landing.land(sent))
    assert sorted(read, key=lambda message: message.message_id) == sorted(sent, key=lambda message: message.message_id)
