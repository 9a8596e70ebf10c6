"""The refusals of the fast queue where Node or its package is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fast_queue import FastQueue, ensure_installed
from kfm_dagster.errors import DependencyUnavailableError


def test_fast_queue_without_npm_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DependencyUnavailableError, match=r"npm is not on the PATH; .*next: install Node"):
        ensure_installed(tmp_path / "bench")
    assert not (tmp_path / "bench").exists()


def test_fast_queue_that_is_not_installed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DependencyUnavailableError, match="call ensure_installed"), FastQueue(tmp_path):
        pass
