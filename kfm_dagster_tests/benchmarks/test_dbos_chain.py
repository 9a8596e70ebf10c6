"""The environment of DBOS: what is refused where it cannot be installed, and that it is installed once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.dbos_chain import ensure_environment
from kfm_dagster.errors import DependencyUnavailableError


def test_dbos_without_uv_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DependencyUnavailableError, match=r"uv is not on the PATH; .*next: pip install uv"):
        ensure_environment(tmp_path / "dbos")
    assert not (tmp_path / "dbos").exists()


def test_an_installer_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installer = tmp_path / "uv"
    installer.write_text("#!/bin/sh\necho no such network >&2\nexit 2\n")
    installer.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(DependencyUnavailableError, match=r"uv cannot install dbos.*no such network"):
        ensure_environment(tmp_path / "dbos")


def test_an_environment_that_is_there_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (tmp_path / "lib" / version / "site-packages" / "dbos").mkdir(parents=True)
    assert ensure_environment(tmp_path) == tmp_path / "bin" / "python"
