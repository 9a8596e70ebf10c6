"""Read-ahead: bytes of one version, given back once, and never a reason to fail."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kfm_dagster.storage.read_ahead import ReadAhead


def test_bytes_come_back_once_and_of_that_version_only() -> None:
    heads = ReadAhead()
    heads.keep("s3://b/k", "v1", b"first")
    heads.keep("s3://b/other", "v1", b"other")
    assert heads.take("s3://b/k", "v2") == b""
    assert heads.take("s3://b/k", "v1") == b"first"
    assert heads.take("s3://b/k", "v1") == b""
    assert heads.take("s3://b/other", "v1") == b"other"
    # A version without a name is not kept.
    heads.keep("s3://b/k", None, b"first")
    assert heads.take("s3://b/k", None) == b""


def test_what_does_not_fit_is_requested_again() -> None:
    for limit, kept in ((10, b"second"), (9, b"")):
        heads = ReadAhead(limit_bytes=limit)
        heads.keep("s3://b/1", "v", b"fast")
        heads.keep("s3://b/2", "v", b"second")
        assert heads.take("s3://b/1", "v") == b"fast"
        assert heads.take("s3://b/2", "v") == kept


def test_a_full_disk_costs_requests_and_no_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    heads = ReadAhead()
    monkeypatch.setattr(os, "pwrite", full)
    heads.keep("s3://b/k", "v", b"first")
    assert heads.take("s3://b/k", "v") == b""


def test_threads_get_the_bytes_that_each_kept() -> None:
    heads = ReadAhead()

    def keep_and_take(number: int) -> bool:
        content = number.to_bytes(4) * (number % 50 + 1)
        heads.keep(f"s3://b/{number}", "v", content)
        return heads.take(f"s3://b/{number}", "v") == content

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(keep_and_take, range(2_000)))
