"""Read-ahead: kept bytes of one version are returned once, and failures of read-ahead fail no unit."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kfm_dagster.storage.read_ahead import ReadAhead


def test_bytes_are_returned_once_and_only_for_their_version() -> None:
    heads = ReadAhead()
    heads.keep("s3://b/k", "v1", b"first")
    heads.keep("s3://b/other", "v1", b"other")
    assert heads.take("s3://b/k", "v2") == b""
    assert heads.take("s3://b/k", "v1") == b"first"
    assert heads.take("s3://b/k", "v1") == b""
    assert heads.take("s3://b/other", "v1") == b"other"
    # Bytes of a version without an ETag are not kept.
    heads.keep("s3://b/k", None, b"first")
    assert heads.take("s3://b/k", None) == b""


def test_bytes_that_do_not_fit_are_requested_again() -> None:
    for limit, kept in ((10, b"second"), (9, b"")):
        heads = ReadAhead(limit_bytes=limit)
        heads.keep("s3://b/1", "v", b"fast")
        heads.keep("s3://b/2", "v", b"second")
        assert heads.take("s3://b/1", "v") == b"fast"
        assert heads.take("s3://b/2", "v") == kept


def test_a_full_disk_causes_more_requests_and_fails_no_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    heads = ReadAhead()
    monkeypatch.setattr(os, "pwrite", full)
    heads.keep("s3://b/k", "v", b"first")
    assert heads.take("s3://b/k", "v") == b""


def test_each_thread_gets_its_own_bytes() -> None:
    heads = ReadAhead()

    def keep_and_take(number: int) -> bool:
        content = number.to_bytes(4) * (number % 50 + 1)
        heads.keep(f"s3://b/{number}", "v", content)
        return heads.take(f"s3://b/{number}", "v") == content

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(keep_and_take, range(2_000)))
